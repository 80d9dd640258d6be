//! What is true at the moment when the page is asked for. Each file of metrics sets its gauges from it.

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
    /// Gauges of each worker.
    pub workers: Vec<WorkerGauges>,
    /// Statistics of the index.
    pub index: IndexStats,
    /// Prefixes refused by the index, and incomplete lookups.
    pub losses: (Refused, u64),
    /// Share of turns that has to meet its objective.
    pub slo_share: f64,
    /// Whether the fleet is overloaded.
    pub is_overloaded: bool,
    /// Value of the ends of silent conversations.
    pub tail: TailState,
    /// Habits of conversations, by class.
    pub habits: Vec<ClassState>,
    /// Live tasks of the runtime.
    pub tasks: u64,
    /// Observations dropped because the queue was full.
    pub lessons_dropped: u64,
    /// Revision of the policy.
    pub policy_revision: u64,
    /// Entries of the audit log that could not be written.
    pub audit_failures: u64,
    /// State of each discovery source.
    pub discovery: Vec<SourceState>,
    /// Requests at the admission gate.
    pub admission: AdmissionGauges,
    /// Other replicas, if configured.
    pub bus: Option<BusGauges>,
    /// Dropped lines of the log.
    pub log_dropped: Dropped,
}

/// Gauges of the admission gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionGauges {
    /// Waiting requests.
    pub waiting: usize,
    /// Admitted requests.
    pub admitted: usize,
}

/// Gauges of one worker.
#[derive(Debug)]
#[allow(missing_docs, reason = "each name says what it is, as the metric's help does")]
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
