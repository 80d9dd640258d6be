//! Metrics of administration.

use super::{Kind, Label, Spec, Values, of};

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
                values: Values::Named("a status of HTTP", 12),
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
        help: "Number of the policy's revision that is in force, from 1 at the start.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_policy_changes_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("source", &["put", "rollback", "revert", "reload"])],
        help: "Times that another policy was put in force.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_audit_write_failures",
        kind: Kind::Gauge,
        unit: "entries",
        labels: &[],
        help: "Entries of the audit log that could not be written to its file since the start.",
        gen_ai: None,
    },
];
