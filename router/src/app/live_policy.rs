//! Another policy in force: by the admin port, by a file that has changed, by the end of a change that was for a time, or
//! because all replicas have it.

use std::sync::Arc;

use policy::route::Settings;
use tracing::info;

use super::App;
use operator::audit::AuditRecord;
use operator::events::Kind;
use operator::revisions::{Adopted, Change, Made, Revision, Source, Stale};

impl App {
    /// Puts another policy in force here, if `expected` is the revision that it changes or none is expected.
    ///
    /// # Errors
    /// If another revision is in force.
    pub fn change_policy(&self, change: Change, expected: Option<u64>) -> Result<Made, Stale> {
        let made = self.policy.apply(self.clock.now(), change, expected)?;
        self.policy_changed(&made.after);
        Ok(made)
    }

    /// Puts an earlier policy in force again, if that is due. Returns what was in force and what is.
    pub fn revert_policy(&self) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let changed = self.policy.revert(self.clock.now())?;
        self.policy_changed(&changed.1);
        Some(changed)
    }

    /// `[routing]` was read again. Returns the policy before and after, if it is another one here and now: where replicas
    /// have theirs in common, it is in force when all have it.
    pub(super) fn configure_policy(&self, settings: Settings) -> Option<(Arc<Revision>, Arc<Revision>)> {
        if self.bus.as_ref().is_some_and(|bus| !bus.has_own_policy()) {
            self.policy.configure_all(settings);
            return None;
        }
        let changed = self.policy.configure(self.clock.now(), settings)?;
        self.policy_changed(&changed.1);
        Some(changed)
    }

    /// A revision that all replicas have in common is in force, if it is news. Returns what was in force and what is.
    pub fn adopt_policy(&self, adopted: Adopted) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let (before, after) = self.policy.adopt(adopted)?;
        info!(
            revision = after.revision,
            by = after.by,
            replica = after.replica,
            "adopted the shared policy"
        );
        self.policy_changed(&after);
        Some((before, after))
    }

    /// Writes down that another replica has changed the policy.
    pub async fn policy_changed_elsewhere(&self, before: &Revision, after: &Revision) {
        let mut happened = AuditRecord::by_router("policy.adopt", before, after);
        happened.who.name.clone_from(&after.by);
        self.operator.audit.record(happened).await;
    }

    fn policy_changed(&self, now: &Revision) {
        // What is configured is no change, whoever wrote it into the bucket.
        if now.source != Source::Start {
            self.metrics.policy_changed(now.source.as_str());
        }
        let now = serde_json::to_value(now).unwrap_or_default();
        self.operator.events.tell(Kind::Policy, "policy", now);
    }
}
