//! Restarts long-lived tasks when they panic.
//!
//! Without its probes, for example, a worker stays out of rotation forever while the process looks alive. So every
//! long-lived task runs under [`forever`] or [`until_done`], which restart it after a pause. State that a task must not
//! lose, such as the receiving end of a queue, is borrowed from outside of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use telemetry::logs::panic_message;
use tokio::time::Instant;
use tracing::error;

use crate::State;
use operator::events::EventKind;

/// Pause before a restart: after the first failure, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Run time after which the pause is reset.
const STEADY: Duration = Duration::from_secs(60);

/// Kind of a supervised task, and the worker that it serves.
#[derive(Clone, Debug)]
pub struct Task {
    kind: &'static str,
    /// Name of the worker; empty for the only task of its kind.
    worker: String,
}

impl Task {
    /// Returns the only task of a kind.
    pub fn only(kind: &'static str) -> Self {
        Self {
            kind,
            worker: String::new(),
        }
    }

    /// Returns a worker's task of a kind.
    pub fn of(kind: &'static str, worker: &str) -> Self {
        Self {
            kind,
            worker: worker.to_owned(),
        }
    }
}

/// Runs a task that does not end: a return is treated like a panic.
pub async fn forever<F: Future<Output = ()>>(state: Arc<State>, task: Task, start: impl FnMut() -> F) {
    run(&state, &task, start, |()| Some("it ended unexpectedly")).await;
}

/// Runs a task until it returns.
pub async fn until_done<F: Future<Output = ()>>(state: Arc<State>, task: Task, start: impl FnMut() -> F) {
    run(&state, &task, start, |()| None).await;
}

/// Runs a task, and restarts it after a panic or a value that `wrong` rejects with a reason.
async fn run<F: Future>(
    state: &State,
    task: &Task,
    mut start: impl FnMut() -> F,
    wrong: impl Fn(F::Output) -> Option<&'static str>,
) {
    let mut pause = PAUSE.0;
    loop {
        let begun = Instant::now();
        // Including `start`, whose panics are handled alike.
        let running = AssertUnwindSafe(async { start().await }).catch_unwind();
        let why = match running.await {
            Ok(returned) => match wrong(returned) {
                None => return,
                Some(why) => why.to_owned(),
            },
            Err(panic) => panic_message(&*panic),
        };
        if begun.elapsed() >= STEADY {
            pause = PAUSE.0;
        }
        report(state, task, &why, pause);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

fn report(state: &State, task: &Task, why: &str, pause: Duration) {
    let (kind, again_in_ms) = (task.kind, pause.as_millis() as u64);
    let worker = (!task.worker.is_empty()).then_some(&*task.worker);
    state.routing.metrics.task_restarts(kind).inc();
    let now = json!({ "failed": why, "worker": worker, "again_in_ms": again_in_ms });
    state.operations.operator.events.tell(EventKind::Task, kind, now);
    error!(
        task = kind,
        worker, why, again_in_ms, "a task failed; restarting it"
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU32, Ordering};

    use config::Overrides;
    use tokio::sync::{Mutex, mpsc};

    use super::*;

    fn state() -> Arc<State> {
        let overrides = Overrides {
            workers: vec!["http://w:1".to_owned()],
            ..Overrides::default()
        };
        State::new(config::load_file(None, BTreeMap::new(), overrides).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_counted_told_and_started_again_with_what_it_was_lent() {
        let state = state();
        let mut events = state.operations.operator.events.listen();
        let (hand_in, queue) = mpsc::channel::<u32>(8);
        let (queue, done) = (Arc::new(Mutex::new(queue)), Arc::<AtomicU32>::default());
        let sum = Arc::clone(&done);
        let add = move || {
            let (queue, sum) = (Arc::clone(&queue), Arc::clone(&sum));
            async move {
                while let Some(number) = queue.lock().await.recv().await {
                    assert!(number != 13, "thirteen came");
                    sum.fetch_add(number, Ordering::Relaxed);
                }
            }
        };
        for number in [1, 13, 2] {
            hand_in.send(number).await.unwrap();
        }
        drop(hand_in);
        until_done(Arc::clone(&state), Task::of("probes", "w"), add).await;
        assert_eq!(done.load(Ordering::Relaxed), 3);
        assert_eq!(state.routing.metrics.task_restarts("probes").get(), 1);
        let event = events.recv().await.unwrap();
        assert_eq!((event.kind, event.subject.as_str()), (EventKind::Task, "probes"));
        let told = json!({ "failed": "panic: thirteen came", "worker": "w", "again_in_ms": 100 });
        assert_eq!(event.now, told);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_half_a_minute_and_begin_anew_after_a_steady_minute() {
        let (state, begun) = (state(), Instant::now());
        let starts = Arc::<parking_lot::Mutex<Vec<u64>>>::default();
        let seen = Arc::clone(&starts);
        let fail = move || {
            let mut seen = seen.lock();
            seen.push(begun.elapsed().as_millis() as u64);
            let steady = if seen.len() == 12 { STEADY } else { Duration::ZERO };
            async move {
                tokio::time::sleep(steady).await;
            }
        };
        let task = tokio::spawn(forever(state, Task::only("gate"), fail));
        while starts.lock().len() < 14 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        task.abort();
        let starts = starts.lock();
        let gaps: Vec<u64> = starts.windows(2).map(|pair| (pair[1] - pair[0]) / 100).collect();
        assert_eq!(gaps[..13], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 601, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_while_it_is_made_is_started_again_too() {
        let mut first = true;
        let start = move || {
            assert!(!std::mem::take(&mut first), "on purpose");
            std::future::ready(())
        };
        let state = state();
        until_done(Arc::clone(&state), Task::only("bus_join"), start).await;
        assert_eq!(state.routing.metrics.task_restarts("bus_join").get(), 1);
    }
}
