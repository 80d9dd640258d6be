//! Ends what was changed for a time: the policy, and workers' α.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;
use crate::fleet::Worker;
use crate::operator::audit::{Happened, Who};

/// Between two looks at workers' α.
const LOOK: Duration = Duration::from_millis(250);

/// Puts an earlier policy in force whenever that is due. Does not end.
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
        let happened = Happened::by_router("policy.revert", &before, &after);
        app.operator.audit.record(happened).await;
    }
}

/// Takes workers' α for what is learned again whenever that is due. Does not end.
pub(super) async fn alphas(app: Arc<App>) {
    loop {
        tokio::time::sleep(LOOK).await;
        for worker in app.fleet.present() {
            revert(&app, &worker).await;
        }
    }
}

async fn revert(app: &App, worker: &Worker) {
    let Some(before) = worker.unpin_due(app.clock.now()) else {
        return;
    };
    let happened = Happened {
        who: Who::router(),
        action: "workers.alpha_revert".to_owned(),
        target: worker.name().to_owned(),
        why: Some("the change was for a time".to_owned()),
        outcome: Ok((
            Some(before.alpha_ms_per_token.into()),
            Some(worker.cost().alpha_ms_per_token.into()),
        )),
    };
    app.operator.audit.record(happened).await;
}
