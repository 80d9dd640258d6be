//! Background tasks of the router: probes, control calls, learning, snapshots.
//!
//! These tasks depend on the [`App`] and everything below it, and nothing below depends on them. Each is one loop, and
//! none delays a request.

mod capacity;
pub mod health;
pub mod hints;
mod introduce;
mod learner;
mod members;
pub mod queues;
mod reverts;
mod room;
mod roster;
mod template;

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::app::App;
use crate::supervise::{Task, forever};

/// Starts all tasks. They end when the set is dropped.
#[must_use]
pub fn spawn(app: &Arc<App>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(snapshot) = &app.config.index.snapshot {
        let (of, snapshot) = (Arc::clone(app), snapshot.clone());
        // A restarted task does not restore again: newer state was learned since.
        let mut restore = true;
        let keep = move || {
            let restore = std::mem::take(&mut restore);
            crate::snapshot::keep(Arc::clone(&of), snapshot.clone(), restore)
        };
        tasks.spawn(forever(Arc::clone(app), Task::only("snapshot"), keep));
    }
    spawn_forever(app, &mut tasks, "gate", crate::admission::gate::keep_moving);
    spawn_forever(app, &mut tasks, "policy_reverts", reverts::policy);
    spawn_forever(app, &mut tasks, "alpha_reverts", reverts::alphas);
    if let Some(traces) = &app.traces {
        let traces = Arc::clone(traces);
        let export = move || Arc::clone(&traces).export();
        tasks.spawn(forever(Arc::clone(app), Task::only("traces"), export));
    }
    if let Some(lessons) = app.feedback.lessons() {
        // Shared, since the task may be restarted.
        let (of, lessons) = (Arc::clone(app), Arc::new(Mutex::new(lessons)));
        let learn = move || learner::learn(Arc::clone(&of), Arc::clone(&lessons));
        tasks.spawn(forever(Arc::clone(app), Task::only("learner"), learn));
    }
    if app.bus.is_some() {
        spawn_forever(app, &mut tasks, "bus", replicas::run);
    }
    spawn_forever(app, &mut tasks, "roster", roster::keep);
    members::spawn(app, &mut tasks);
    tasks
}

fn spawn_forever<F>(app: &Arc<App>, tasks: &mut JoinSet<()>, kind: &'static str, start: fn(Arc<App>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let of = Arc::clone(app);
    let start = move || start(Arc::clone(&of));
    tasks.spawn(forever(Arc::clone(app), Task::only(kind), start));
}
