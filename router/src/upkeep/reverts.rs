//! Ends changes of the policy that were made for a time.

use std::sync::Arc;

use crate::app::App;
use crate::operator::audit::Happened;

/// Goes back whenever that is due. Does not end.
pub(super) async fn keep(app: Arc<App>) {
    loop {
        app.policy.revert_due(app.clock).await;
        let Some((before, after)) = app.policy.revert(app.clock.now()) else {
            continue;
        };
        app.metrics.policy_changed(after.source.as_str());
        let happened = Happened::by_router("policy.revert", &before, &after);
        app.operator.audit.record(happened).await;
    }
}
