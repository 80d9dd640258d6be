//! Runs each worker's tasks while the worker is in the fleet.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{facts, health, hints, queues};
use evidence::follow::follow;
use fleet::Worker;
use fleet::overrides::AdminState;
use proxy::Proxy;
use state::supervise::{Task, forever};

/// Interval at which leaving workers are checked for remaining requests.
const LOOK: Duration = Duration::from_millis(100);

type Looking = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) async fn keep(proxy: Arc<Proxy>) {
    let mut changes = proxy.state.routing.fleet.changes();
    let mut crews: Vec<(Arc<Worker>, JoinSet<()>)> = Vec::new();
    loop {
        changes.mark_unchanged();
        for worker in proxy.state.routing.fleet.present() {
            if !crews.iter().any(|(known, _)| Arc::ptr_eq(known, &worker)) {
                let crew = crew(&proxy, &worker);
                crews.push((worker, crew));
            }
        }
        // The tasks end first, because the state that they learn is removed with the worker.
        for (worker, crew) in &mut crews {
            if worker.admin_state() == AdminState::Leaving && worker.with_load(|load| load.in_flight) == 0 {
                crew.shutdown().await;
                if proxy.state.forget_if_done(worker) {
                    proxy.stored.left(worker.id);
                }
            }
        }
        crews.retain(|(worker, _)| worker.admin_state() != AdminState::Gone);
        let leaving = crews
            .iter()
            .any(|(worker, _)| worker.admin_state() == AdminState::Leaving);
        tokio::select! {
            // The proxy holds the sender and outlives this task.
            _ = changes.changed() => {}
            () = tokio::time::sleep(LOOK), if leaving => {}
        }
    }
}

fn crew(proxy: &Arc<Proxy>, worker: &Arc<Worker>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut spawn = |kind, start: fn(Arc<Proxy>, Arc<Worker>) -> Looking| {
        let (of, looked_after) = (Arc::clone(proxy), Arc::clone(worker));
        let start = move || start(Arc::clone(&of), Arc::clone(&looked_after));
        tasks.spawn(forever(
            Arc::clone(&proxy.state),
            Task::of(kind, worker.name()),
            start,
        ));
    };
    spawn("probes", |proxy, worker| Box::pin(health::watch(proxy, worker)));
    spawn("facts", |proxy, worker| Box::pin(facts::keep(proxy, worker)));
    if worker.spec.kv_events != config::KvEvents::Off {
        spawn("kv_events", |proxy, worker| {
            Box::pin(follow(Arc::clone(&proxy.state), worker))
        });
    }
    if proxy.state.config.health.queue_interval.is_some() {
        spawn("queues", |proxy, worker| {
            Box::pin(queues::watch(Arc::clone(&proxy.state), worker))
        });
    }
    spawn("hints", |proxy, worker| Box::pin(hints::deliver(proxy, worker)));
    tasks
}
