//! What is true at the moment when the page is asked for. Each file of metrics sets its gauges from it.

use policy::cost::PrefillCost;
use policy::estimate::{QueueFigure, Reconciled};
use policy::evidence::Bindings;
use policy::index::IndexStats;
use policy::residency::Refused;
use policy::units::{Millis, Tokens};

use super::BusGauges;
use crate::discovery::board::SourceState;
use crate::logs::writer::Dropped;
use crate::slo::{ClassState, TailState};
use fleet::breaker::Standing;

/// What is true at one moment, for the page.
#[derive(Debug)]
pub struct Gauges {
    /// Each worker.
    pub workers: Vec<WorkerGauges>,
    /// The index.
    pub index: IndexStats,
    /// What it would not take, and lookups that were cut short.
    pub losses: (Refused, u64),
    /// Share of turns that has to meet its objective.
    pub slo_share: f64,
    /// What ends of silent conversations are worth.
    pub tail: TailState,
    /// What conversations do, by class.
    pub habits: Vec<ClassState>,
    /// Tasks that live in the runtime.
    pub tasks: u64,
    /// Lessons lost to a full queue.
    pub lessons_dropped: u64,
    /// The policy's revision.
    pub policy_revision: u64,
    /// Entries of the audit log that could not be written.
    pub audit_failures: u64,
    /// What finds workers.
    pub discovery: Vec<SourceState>,
    /// Requests that wait here, and those behind the gate.
    pub admission: (usize, usize),
    /// Other replicas, if there are to be any.
    pub bus: Option<BusGauges>,
    /// Lines of the log that were lost.
    pub log_dropped: Dropped,
}

/// A worker at one moment.
#[derive(Debug)]
#[allow(missing_docs, reason = "each name says what it is, as the metric's help does")]
pub struct WorkerGauges {
    pub name: String,
    pub ready: bool,
    pub breaker: Standing,
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
