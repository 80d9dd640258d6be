//! Metrics of administration.

use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::{Metrics, clamp};

/// Administration. Labels come from the table of operations and from fixed lists.
#[derive(Debug)]
pub(super) struct Admin {
    requests: Labelled<Counter>,
    revision: IntGauge,
    changes: Labelled<Counter>,
    audit_failures: IntGauge,
}

impl Admin {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let changes = metrics.counter("tailroute_policy_changes_total")?;
        for source in ["put", "rollback", "revert", "reload"] {
            changes.with_label_values(&[source]);
        }
        Ok(Self {
            requests: metrics.counter("tailroute_admin_requests_total")?,
            revision: metrics.count("tailroute_policy_revision")?,
            changes,
            audit_failures: metrics.count("tailroute_audit_write_failures")?,
        })
    }
}

impl Metrics {
    /// Counts a request to the admin API.
    pub fn admin_request(&self, operation: &str, status: u16) {
        let status = status.to_string();
        self.admin.requests.with_label_values(&[operation, &status]).inc();
    }

    /// Counts a change of the policy.
    pub fn policy_changed(&self, source: &str) {
        self.admin.changes.with_label_values(&[source]).inc();
    }

    pub(super) fn set_admin(&self, revision: u64, audit_failures: u64) {
        self.admin.revision.set(clamp(revision));
        self.admin.audit_failures.set(clamp(audit_failures));
    }
}
