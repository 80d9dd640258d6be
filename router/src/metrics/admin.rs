//! What people do to the router while it serves.

use prometheus::{IntCounterVec, IntGauge};

use super::registrar::Registrar;
use super::{Metrics, clamp};

/// Administration. Its labels come from the table of operations and from fixed lists.
#[derive(Debug)]
pub(super) struct Admin {
    requests: IntCounterVec,
    revision: IntGauge,
    changes: IntCounterVec,
    audit_failures: IntGauge,
}

impl Admin {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, prometheus::Error> {
        let changes = metrics.counter(
            "tailroute_policy_changes_total",
            "Times that another policy was put in force: put, rollback, revert, reload.",
            &["source"],
        )?;
        for source in ["put", "rollback", "revert", "reload"] {
            changes.with_label_values(&[source]);
        }
        Ok(Self {
            requests: metrics.counter(
                "tailroute_admin_requests_total",
                "Requests to the admin port, by operation and status.",
                &["operation", "status"],
            )?,
            revision: metrics.count(
                "tailroute_policy_revision",
                "Number of the policy's revision that is in force, from 1 at the start.",
            )?,
            changes,
            audit_failures: metrics.count(
                "tailroute_audit_write_failures",
                "Entries of the audit log that could not be written to its file since the start.",
            )?,
        })
    }
}

impl Metrics {
    /// The admin port was asked something.
    pub fn admin_request(&self, operation: &str, status: u16) {
        let status = status.to_string();
        self.admin.requests.with_label_values(&[operation, &status]).inc();
    }

    /// Another policy is in force.
    pub fn policy_changed(&self, source: &str) {
        self.admin.changes.with_label_values(&[source]).inc();
    }

    pub(super) fn set_admin(&self, revision: u64, audit_failures: u64) {
        self.admin.revision.set(clamp(revision));
        self.admin.audit_failures.set(clamp(audit_failures));
    }
}
