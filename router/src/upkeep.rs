//! What runs beside the requests, for as long as the router does: probes, control calls, learning, snapshots.
//!
//! These tasks know the [`App`] and everything below it; nothing below knows them. Each is one loop, and none holds a
//! request up.

pub mod health;
pub mod hints;
mod introduce;
mod learner;
pub mod queues;
mod reverts;
mod roster;
mod template;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::app::App;

/// Starts it all. Ends when the set is dropped.
#[must_use]
pub fn spawn(app: &Arc<App>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(snapshot) = &app.config.index.snapshot {
        tasks.spawn(crate::snapshot::keep(Arc::clone(app), snapshot.clone()));
    }
    tasks.spawn(crate::admission::gate::keep_moving(Arc::clone(app)));
    tasks.spawn(reverts::policy(Arc::clone(app)));
    tasks.spawn(reverts::alphas(Arc::clone(app)));
    if let Some(exporter) = app.traces.as_ref().and_then(|traces| traces.exporter()) {
        tasks.spawn(exporter);
    }
    if let Some(lessons) = app.feedback.lessons() {
        tasks.spawn(learner::learn(Arc::clone(app), lessons));
    }
    if app.bus.is_some() {
        tasks.spawn(crate::bus::run(Arc::clone(app)));
    }
    tasks.spawn(roster::keep(Arc::clone(app)));
    crate::discovery::spawn(app, &mut tasks);
    tasks
}
