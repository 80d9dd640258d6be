//! Ends temporary changes of the policy and of workers' α.

use std::sync::Arc;
use std::time::Duration;

use policy::units::Millis;

use fleet::Worker;
use fleet::clock;
use operator::audit::{AuditRecord, Author};
use replicas::Bus;
use state::State;

/// Interval at which a process that has handed its state over checks whether its successor has failed.
const SUCCESSOR: Duration = Duration::from_secs(1);

pub(super) async fn policy(state: Arc<State>, bus: Option<Arc<Bus>>) {
    loop {
        state.routing.policy.revert_due(state.routing.clock).await;
        if state.operations.is_handed_over() {
            tokio::time::sleep(SUCCESSOR).await;
            continue;
        }
        let reverted = match &bus {
            None => state.revert_policy(),
            Some(bus) => bus.revert_policy(&state).await,
        };
        let Some((before, after)) = reverted else {
            continue;
        };
        let happened = AuditRecord::by_router("policy.revert", &before, &after);
        state.operations.operator.audit.record(happened).await;
    }
}

pub(super) async fn alphas(state: Arc<State>) {
    loop {
        let workers = state.routing.fleet.present();
        let pins = workers.iter().filter_map(|worker| worker.pinned_alpha()?.until);
        let due = pins.reduce(Millis::min);
        let wait = due.map(|due| clock::duration(due - state.routing.clock.now()));
        tokio::select! {
            () = state.operations.operator.alphas_set.notified() => {}
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
        if state.operations.is_handed_over() {
            tokio::time::sleep(SUCCESSOR).await;
            continue;
        }
        for worker in workers {
            revert(&state, &worker).await;
        }
    }
}

async fn revert(state: &State, worker: &Worker) {
    let Some(before) = worker.unpin_due(state.routing.clock.now()) else {
        return;
    };
    let happened = AuditRecord {
        who: Author::router(),
        action: "workers.alpha_revert".to_owned(),
        target: worker.name().to_owned(),
        why: Some("the temporary change expired".to_owned()),
        outcome: Ok((
            Some(before.alpha_ms_per_token.into()),
            Some(worker.cost().alpha_ms_per_token.into()),
        )),
    };
    state.operations.operator.audit.record(happened).await;
}
