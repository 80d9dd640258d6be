//! Metrics of the router's tasks and log.

use super::{Kind, Spec, of};
use crate::supervise::TASKS;

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_task_restarts_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("task", TASKS)],
        help: "Times that a long-lived task panicked, or ended by itself, and was started again. Each is a defect: the log names it.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_log_lines_dropped_total",
        kind: Kind::Counter,
        unit: "lines",
        labels: &[of("why", &["full", "failed"])],
        help: "Lines of the log that were lost: standard error was slower than the log (full), or could not be written to (failed).",
        gen_ai: None,
    },
];
