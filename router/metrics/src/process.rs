//! Metrics of the process: the build, processor time, memory, descriptors, tasks and the log.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use procfs::process::{LimitValue, Process as Proc};

use super::labelled::{Counter, Gauge, IntGauge, Labelled, RealCounter, raise};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, Values, gauge, of};
use super::{Metrics, clamp};
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
    "capture",
    "data_port",
    "discovery_dns",
    "discovery_file",
    "discovery_kubernetes",
    "discovery_members",
    "facts",
    "gate",
    "handover",
    "hints",
    "kv_events",
    "learner",
    "overload",
    "picker_port",
    "policy_reverts",
    "probes",
    "queues",
    "reload",
    "roster",
    "snapshot",
    "traces",
];

const VERSION: &str = env!("CARGO_PKG_VERSION");

const fn single(name: &'static str, what: &'static str) -> Label {
    Label {
        name,
        values: Values::Named(what, 1),
    }
}

pub(super) const TABLE: &[Spec] = &[
    gauge(
        "tailroute_build_info",
        "1",
        &[
            single("version", "the router's version"),
            single("commit", "the commit it is built from, empty outside a checkout"),
        ],
        "Always 1; the labels name the build.",
    ),
    Spec {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        unit: "seconds",
        labels: &[],
        help: "Processor time of the process, in user and system mode.",
        gen_ai: None,
    },
    gauge(
        "process_start_time_seconds",
        "seconds",
        &[],
        "Unix time at which the process started to serve.",
    ),
    gauge(
        "process_resident_memory_bytes",
        "bytes",
        &[],
        "Memory of the process that is in RAM.",
    ),
    gauge(
        "process_virtual_memory_bytes",
        "bytes",
        &[],
        "Address space of the process.",
    ),
    gauge("process_open_fds", "descriptors", &[], "Open file descriptors."),
    gauge(
        "process_max_fds",
        "descriptors",
        &[],
        "Limit on open file descriptors.",
    ),
    gauge("process_threads", "threads", &[], "Threads of the process."),
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

#[derive(Debug)]
pub(super) struct Process {
    build: Labelled<Gauge>,
    cpu: RealCounter,
    resident: IntGauge,
    address_space: IntGauge,
    open_files: IntGauge,
    most_files: IntGauge,
    threads: IntGauge,
    restarts: Labelled<Counter>,
    lost: Labelled<Counter>,
}

impl Process {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let restarts = metrics.labelled("tailroute_task_restarts_total")?;
        for task in TASKS {
            restarts.with_label_values(&[task]);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let started: Gauge = metrics.single("process_start_time_seconds")?;
        started.set(now.map_or(0.0, |now| now.as_secs_f64()));
        Ok(Self {
            build: metrics.labelled("tailroute_build_info")?,
            cpu: metrics.single("process_cpu_seconds_total")?,
            resident: metrics.single("process_resident_memory_bytes")?,
            address_space: metrics.single("process_virtual_memory_bytes")?,
            open_files: metrics.single("process_open_fds")?,
            most_files: metrics.single("process_max_fds")?,
            threads: metrics.single("process_threads")?,
            restarts,
            lost: metrics.labelled("tailroute_log_lines_dropped_total")?,
        })
    }

    pub(super) fn name_build(&self, commit: &str) {
        self.build.set(&[VERSION, commit], 1.0);
    }

    /// Sets the gauges that the system reports, and the total of dropped lines. A gauge that cannot be read keeps its
    /// value.
    pub(super) fn set(&self, dropped: Dropped) {
        raise(&self.lost.with_label_values(&["full"]), dropped.full);
        raise(&self.lost.with_label_values(&["failed"]), dropped.failed);
        let Ok(process) = Proc::myself() else { return };
        if let Ok(stat) = process.stat() {
            let seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
            // Two readers of the page may come here in any order; bits of positive numbers are ordered as these are.
            self.cpu.inner().fetch_max(seconds.to_bits(), Ordering::Relaxed);
            self.resident
                .set(clamp(stat.rss.saturating_mul(procfs::page_size())));
            self.address_space.set(clamp(stat.vsize));
            self.threads.set(stat.num_threads);
        }
        if let Ok(open) = process.fd_count() {
            self.open_files.set(clamp(open as u64));
        }
        if let Ok(limits) = process.limits() {
            let most = match limits.max_open_files.soft_limit {
                LimitValue::Value(most) => clamp(most),
                LimitValue::Unlimited => i64::MAX,
            };
            self.most_files.set(most);
        }
    }
}

impl Metrics {
    /// Returns the counter of restarts for this kind of task.
    #[must_use]
    pub fn task_restarts(&self, task: &str) -> Counter {
        self.process.restarts.with_label_values(&[task])
    }
}
