//! Waits for conditions, up to a deadline that catches hanging tests.

use std::time::Duration;

use proxy::admission::gate::Gate;

/// Longest wait of a test.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Polling interval of a condition.
const LOOK: Duration = Duration::from_millis(1);

/// Waits for `work`, and returns its result.
///
/// # Panics
/// If it is not ready before the deadline.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("the test hangs")
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold before the deadline; `what` names the condition.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(waited.await.is_ok(), "never came to be: {what}");
}

/// Waits until this many requests wait at the gate and this many are admitted.
///
/// # Panics
/// If that does not come before the deadline.
pub async fn until_at_gate(gate: &Gate, waiting: usize, admitted: usize) {
    let what = format!("{waiting} waiting and {admitted} admitted");
    until(&what, || {
        let counts = gate.counts();
        (counts.waiting, counts.admitted) == (waiting, admitted)
    })
    .await;
}
