//! Ends temporary changes of the policy and of workers' α.

use std::sync::Arc;

use policy::units::Millis;

use crate::app::App;
use fleet::Worker;
use fleet::clock;
use operator::audit::{AuditRecord, Who};

/// Restores an earlier policy whenever that is due. Does not end.
pub(super) async fn policy(app: Arc<App>) {
    loop {
        app.policy.revert_due(app.clock).await;
        let reverted = match &app.bus {
            None => app.revert_policy(),
            Some(bus) => bus.revert_policy(&app).await,
        };
        let Some((before, after)) = reverted else {
            continue;
        };
        let happened = AuditRecord::by_router("policy.revert", &before, &after);
        app.operator.audit.record(happened).await;
    }
}

/// Restores learned values of α whenever a pin expires. Does not end.
pub(super) async fn alphas(app: Arc<App>) {
    loop {
        let workers = app.fleet.present();
        let pins = workers.iter().filter_map(|worker| worker.pinned_alpha()?.until);
        let due = pins.reduce(Millis::min);
        let wait = due.map(|due| clock::duration(due - app.clock.now()));
        tokio::select! {
            () = app.operator.alphas_set.notified() => {}
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
        for worker in workers {
            revert(&app, &worker).await;
        }
    }
}

async fn revert(app: &App, worker: &Worker) {
    let Some(before) = worker.unpin_due(app.clock.now()) else {
        return;
    };
    let happened = AuditRecord {
        who: Who::router(),
        action: "workers.alpha_revert".to_owned(),
        target: worker.name().to_owned(),
        why: Some("the temporary change expired".to_owned()),
        outcome: Ok((
            Some(before.alpha_ms_per_token.into()),
            Some(worker.cost().alpha_ms_per_token.into()),
        )),
    };
    app.operator.audit.record(happened).await;
}
