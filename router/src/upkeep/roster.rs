//! Who is looked after: each worker's tasks begin when it joins, and end when it has left.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{health, hints, queues};
use crate::app::App;
use crate::evidence::follow::follow;
use crate::fleet::Worker;
use crate::fleet::hold::Hold;

/// Between two looks at whether those that are to leave have ended what they had.
const LOOK: Duration = Duration::from_millis(100);

/// Keeps every worker looked after, for as long as the task lives.
pub(super) async fn keep(app: Arc<App>) {
    let mut changes = app.fleet.changes();
    let mut crews: Vec<(Arc<Worker>, JoinSet<()>)> = Vec::new();
    loop {
        changes.mark_unchanged();
        for worker in app.fleet.present() {
            if !crews.iter().any(|(known, _)| Arc::ptr_eq(known, &worker)) {
                let crew = crew(&app, &worker);
                crews.push((worker, crew));
            }
        }
        // Its tasks first: whatever they learn of it has to be forgotten with the rest.
        for (worker, crew) in &mut crews {
            if worker.hold() == Hold::Leaving && worker.with_load(|load| load.in_flight) == 0 {
                crew.shutdown().await;
                app.forget_if_done(worker);
            }
        }
        crews.retain(|(worker, _)| worker.hold() != Hold::Gone);
        let leaving = crews.iter().any(|(worker, _)| worker.hold() == Hold::Leaving);
        tokio::select! {
            // The other end is in the app, which outlives this.
            _ = changes.changed() => {}
            () = tokio::time::sleep(LOOK), if leaving => {}
        }
    }
}

fn crew(app: &Arc<App>, worker: &Arc<Worker>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(health::watch(Arc::clone(app), Arc::clone(worker)));
    if worker.spec.kv_events != config::KvEvents::Off {
        tasks.spawn(follow(Arc::clone(app), Arc::clone(worker)));
    }
    if let Some(interval) = app.config.health.queue_interval {
        tasks.spawn(queues::watch(Arc::clone(app), Arc::clone(worker), interval));
    }
    if app.config.hints.enabled {
        tasks.spawn(hints::deliver(Arc::clone(app), Arc::clone(worker)));
    }
    tasks
}
