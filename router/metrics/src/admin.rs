use super::labelled::{Counter, IntGauge, Labelled, raise};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, Values, of};
use super::{Metrics, clamp};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_admin_requests_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[
            Label {
                name: "operation",
                values: Values::Named("an operation of the admin port", 40),
            },
            Label {
                name: "status",
                values: Values::Named("an HTTP status", 12),
            },
        ],
        help: "Requests to the admin port, by operation and status.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_policy_revision",
        kind: Kind::Gauge,
        unit: "revision",
        labels: &[],
        help: "Revision of the policy in force, starting from 1.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_policy_changes_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("source", &["put", "rollback", "revert", "reload"])],
        help: "Changes of the policy in force.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_audit_write_failures_total",
        kind: Kind::Counter,
        unit: "entries",
        labels: &[],
        help: "Audit log entries that could not be written to the file.",
        gen_ai: None,
    },
];

/// Metrics of administration. Labels are ids of operations, HTTP statuses and kinds of policy changes.
#[derive(Debug)]
pub(super) struct AdminMetrics {
    requests: Labelled<Counter>,
    revision: IntGauge,
    changes: Labelled<Counter>,
    audit_failures: Counter,
}

impl AdminMetrics {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let changes = metrics.labelled("tailroute_policy_changes_total")?;
        for source in ["put", "rollback", "revert", "reload"] {
            changes.with_label_values(&[source]);
        }
        Ok(Self {
            requests: metrics.labelled("tailroute_admin_requests_total")?,
            revision: metrics.single("tailroute_policy_revision")?,
            changes,
            audit_failures: metrics.single("tailroute_audit_write_failures_total")?,
        })
    }
}

impl Metrics {
    /// Counts a request to the admin API.
    pub fn admin_request(&self, operation: &str, status: u16) {
        let status = status.to_string();
        self.admin.requests.inc(&[operation, &status]);
    }

    /// Counts a change of the policy.
    pub fn policy_changed(&self, source: &str) {
        self.admin.changes.inc(&[source]);
    }

    pub(super) fn set_admin(&self, revision: u64, audit_failures: u64) {
        self.admin.revision.set(clamp(revision));
        raise(&self.admin.audit_failures, audit_failures);
    }
}
