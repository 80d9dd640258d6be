//! Values at the moment when the metrics page is requested. Each file of metrics sets its gauges from them.

use discovery::SourceState;
use policy::cost::PrefillCost;
use policy::estimate::{QueueFigure, Reconciled};
use policy::evidence::Bindings;
use policy::index::IndexStats;
use policy::residency::Refused;
use policy::units::{Millis, Tokens};

use super::BusGauges;
use fleet::breaker::BreakerState;
use learning::feedback::{ClassState, TailState};
use telemetry::logs::writer::Dropped;

/// Values of the gauges at one moment.
#[derive(Debug)]
pub struct Gauges {
    pub workers: Vec<WorkerGauges>,
    pub index: IndexStats,
    /// Prefixes refused by the index, and incomplete lookups.
    pub losses: (Refused, u64),
    /// Share of turns that has to meet its objective.
    pub slo_share: f64,
    /// Objective of turns without a class.
    pub objective: Millis,
    pub is_overloaded: bool,
    /// Terms of the value of conversations' ends.
    pub tail: TailState,
    /// Habits of conversations, by class.
    pub habits: Vec<ClassState>,
    /// Number of live tasks of the runtime.
    pub tasks: u64,
    /// Number of observations dropped because the queue was full.
    pub lessons_dropped: u64,
    pub policy_revision: u64,
    /// Number of audit log entries that could not be written.
    pub audit_failures: u64,
    pub discovery: Vec<SourceState>,
    /// Requests at the admission gate.
    pub admission: AdmissionGauges,
    /// Other replicas, if configured.
    pub bus: Option<BusGauges>,
    /// Lines of the log that were dropped since the start.
    pub log_dropped: Dropped,
}

/// Gauges of the admission gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionGauges {
    /// Number of requests that wait for admission.
    pub waiting: usize,
    /// Number of admitted requests that have not ended.
    pub admitted: usize,
}

/// Gauges of one worker.
#[derive(Debug)]
pub struct WorkerGauges {
    pub name: String,
    pub ready: bool,
    pub breaker: BreakerState,
    pub ttft_errors: Option<[(&'static str, Millis); 3]>,
    pub in_flight: u32,
    pub wait: Millis,
    pub utilisation: f64,
    pub resident: Tokens,
    pub kv_live: bool,
    pub kv_blocks: u64,
    pub kv_bindings: Bindings,
    pub cost: PrefillCost,
    pub overhead: Millis,
    pub cost_error: Millis,
    pub xi_tokens: f64,
    pub silent: u64,
    pub queue: Option<(QueueFigure, Reconciled)>,
}
