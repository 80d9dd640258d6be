//! Background tasks of the router: probes, control calls, learning, snapshots.
//!
//! No other part of the router calls these tasks. Each is one loop, and none delays a request.

mod capacity;
mod facts;
pub mod health;
pub mod hints;
mod learner;
mod members;
mod overload;
pub mod queues;
mod reverts;
mod room;
mod roster;
mod slow;
mod template;

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use proxy::Proxy;
use replicas::Bus;
use state::State;
use state::snapshot::SavedState;
use state::supervise::{Task, forever};

/// Starts all tasks. `kept`: state of an earlier process, which is restored. The tasks end when the set is dropped.
#[must_use]
pub fn spawn(proxy: &Arc<Proxy>, bus: Option<&Arc<Bus>>, mut kept: Option<SavedState>) -> JoinSet<()> {
    let mut tasks = Tasks {
        state: Arc::clone(&proxy.state),
        running: JoinSet::new(),
    };
    let state = &proxy.state;
    let settings = state.config.index.snapshot.clone();
    if settings.is_some() || kept.is_some() {
        let of = Arc::clone(state);
        // A restarted task does not restore again: newer state was learned since.
        let keep = move || state::snapshot::keep(Arc::clone(&of), settings.clone(), kept.take());
        tasks.spawn("snapshot", keep);
    }
    tasks.spawn_with(&proxy.admission, "gate", proxy::admission::gate::keep_moving);
    let (of, with) = (Arc::clone(state), bus.cloned());
    let revert = move || reverts::policy(Arc::clone(&of), with.clone());
    tasks.spawn("policy_reverts", revert);
    tasks.spawn_with(state, "alpha_reverts", reverts::alphas);
    tasks.spawn_with(proxy, "overload", overload::watch);
    if let Some(traces) = &proxy.traces {
        let traces = Arc::clone(traces);
        tasks.spawn("traces", move || Arc::clone(&traces).export());
    }
    if let Some(events) = state.routing.feedback.take_receiver() {
        // Shared, since the task may be restarted.
        let (of, events) = (Arc::clone(proxy), Arc::new(Mutex::new(events)));
        let learn = move || learner::learn(Arc::clone(&of), Arc::clone(&events));
        tasks.spawn("learner", learn);
    }
    if let Some(bus) = bus {
        let (of, bus) = (Arc::clone(state), Arc::clone(bus));
        tasks.spawn("bus", move || {
            replicas::link::run(Arc::clone(&of), Arc::clone(&bus))
        });
    }
    tasks.spawn_with(proxy, "roster", roster::keep);
    members::spawn(&mut tasks);
    tasks.running
}

struct Tasks {
    state: Arc<State>,
    running: JoinSet<()>,
}

impl Tasks {
    fn spawn<F>(&mut self, kind: &'static str, start: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = forever(Arc::clone(&self.state), Task::only(kind), start);
        self.running.spawn(task);
    }

    fn spawn_with<T, F>(&mut self, part: &Arc<T>, kind: &'static str, start: fn(Arc<T>) -> F)
    where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let part = Arc::clone(part);
        self.spawn(kind, move || start(Arc::clone(&part)));
    }
}
