//! Metrics of the router's tasks and log.

use parking_lot::Mutex;

use super::Metrics;
use super::labelled::{Counter, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, of};
use telemetry::logs::writer::Dropped;

/// Kinds of supervised tasks: values of the label `task`.
pub(super) const TASKS: &[&str] = &[
    "admin_port",
    "alpha_reverts",
    "bus",
    "bus_calibrations",
    "bus_give",
    "bus_hear",
    "bus_join",
    "bus_leader",
    "bus_policy",
    "bus_speak",
    "bus_tidy",
    "bus_watch",
    "capture",
    "data_port",
    "discovery_dns",
    "discovery_file",
    "discovery_kubernetes",
    "discovery_members",
    "gate",
    "handover",
    "hints",
    "kv_events",
    "learner",
    "picker_port",
    "policy_reverts",
    "probes",
    "queues",
    "reload",
    "roster",
    "snapshot",
    "traces",
];

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_task_restarts_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("task", TASKS)],
        help: "Restarts of long-lived tasks that panicked or ended unexpectedly. Each is a defect; see the log.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_log_lines_dropped_total",
        kind: Kind::Counter,
        unit: "lines",
        labels: &[of("why", &["full", "failed"])],
        help: "Lost log lines: standard error was too slow (full), or could not be written to (failed).",
        gen_ai: None,
    },
];

/// Restarted tasks, and dropped lines of the log.
#[derive(Debug)]
pub(super) struct Process {
    restarts: Labelled<Counter>,
    lost: Labelled<Counter>,
    /// Dropped lines that are already counted.
    counted: Mutex<Dropped>,
}

impl Process {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let restarts = metrics.counter("tailroute_task_restarts_total")?;
        for task in TASKS {
            restarts.with_label_values(&[task]);
        }
        Ok(Self {
            restarts,
            lost: metrics.counter("tailroute_log_lines_dropped_total")?,
            counted: Mutex::default(),
        })
    }

    /// Adds the lines dropped since the last call.
    pub(super) fn set_dropped(&self, dropped: Dropped) {
        let mut counted = self.counted.lock();
        let count = |why, before: u64, now: u64| {
            self.lost
                .with_label_values(&[why])
                .inc_by(now.saturating_sub(before));
        };
        count("full", counted.full, dropped.full);
        count("failed", counted.failed, dropped.failed);
        *counted = dropped;
    }
}

impl Metrics {
    /// Returns the counter of restarts for this kind of task.
    #[must_use]
    pub fn task_restarts(&self, task: &str) -> Counter {
        self.process.restarts.with_label_values(&[task])
    }
}
