//! Changes of the active policy: by the admin port, a reload, the end of a temporary change, or other replicas.

use std::sync::Arc;

use policy::route::Settings;
use tracing::info;

use super::State;
use operator::audit::AuditRecord;
use operator::events::EventKind;
use operator::revisions::{Adopted, AppliedChange, Change, Revision, RevisionSource, Stale};

impl State {
    /// Applies a change, if `expected` is the active revision or `None`. Fails if another revision is active.
    pub fn change_policy(&self, change: Change, expected: Option<u64>) -> Result<AppliedChange, Stale> {
        let made = self
            .routing
            .policy
            .apply(self.routing.clock.now(), change, expected)?;
        self.policy_changed(&made.after);
        Ok(made)
    }

    /// Ends the temporary values that are due. Returns the policy before and after, if that changes it.
    pub fn revert_policy(&self) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let changed = self.routing.policy.revert(self.routing.clock.now())?;
        self.policy_changed(&changed.1);
        Some(changed)
    }

    /// Applies the keys of `[routing]` that differ from what was last read. Returns the policy before and after, if any
    /// key differs.
    pub fn configure_policy(&self, settings: Settings) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let changed = self
            .routing
            .policy
            .configure(self.routing.clock.now(), settings)?;
        self.policy_changed(&changed.1);
        Some(changed)
    }

    /// Activates the revision shared by all replicas. Returns the policy before and after, if the revision is new.
    pub fn adopt_policy(&self, adopted: Adopted) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let (before, after) = self.routing.policy.adopt(adopted)?;
        info!(
            revision = after.revision,
            by = after.by,
            replica = after.replica,
            "adopted the shared policy"
        );
        self.policy_changed(&after);
        Some((before, after))
    }

    /// Audits a policy change made on another replica.
    pub async fn policy_changed_elsewhere(&self, before: &Revision, after: &Revision) {
        let mut happened = AuditRecord::by_router("policy.adopt", before, after);
        happened.who.name.clone_from(&after.by);
        self.operations.operator.audit.record(happened).await;
    }

    fn policy_changed(&self, now: &Revision) {
        // The configured policy is no change, whichever replica wrote it to the bucket.
        if now.source != RevisionSource::Start {
            self.routing.metrics.policy_changed(now.source.as_str());
        }
        let now = serde_json::to_value(now).unwrap_or_default();
        self.operations
            .operator
            .events
            .tell(EventKind::Policy, "policy", now);
    }
}
