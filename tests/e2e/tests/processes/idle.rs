//! A router without requests rarely wakes up.

use std::time::Duration;

use tailroute_e2e::child::{Child, free_address};

/// Time after the start in which workers are introduced and threads end.
const SETTLED: Duration = Duration::from_secs(12);
/// Time of the count.
const COUNTED: Duration = Duration::from_secs(5);
/// Most wakeups of all threads within [`COUNTED`]. Some 9 are expected, and a timer that fires each 0.25 s adds 20.
const MOST: u64 = 20;

/// The default configuration and one healthy worker, which is probed each 2 s.
#[tokio::test]
async fn an_idle_router_wakes_at_most_four_times_a_second() {
    let worker = Child::engine(free_address(), false, 1.0).await;
    let router = Child::router_by_default(free_address(), free_address(), worker.address).await;
    tokio::time::sleep(SETTLED).await;
    let before = router.waits();
    tokio::time::sleep(COUNTED).await;
    let after = router.waits();
    let woken: Vec<(&str, u64)> = after
        .iter()
        .map(|(thread, waits)| (&**thread, waits - before.get(thread).unwrap_or(&0)))
        .collect();
    let all: u64 = woken.iter().map(|(_, waits)| waits).sum();
    assert!(all <= MOST, "{all} wakeups in {COUNTED:?}, by thread: {woken:?}");
}
