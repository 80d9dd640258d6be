//! A fleet under the routing policies: the router's own code, a discrete-event clock, no network.
//!
//! Each worker is one prefill server with a queue ([`Order`]) in front of a
//! [`PrefixCache`](policy::cache::PrefixCache), as in the simulated engine that serves HTTP. A prefill takes `β + α·u +
//! γ·u·(h + u/2)` ms, where `h` is what the cache holds when the prefill *starts*. Then the response is decoded, which
//! takes time and holds blocks, and may slow prefills down; by default it is instantaneous, so that the figures reflect
//! queueing and caching alone.
//!
//! Between trace and workers are the router's components: [`policy::route::decide`] over snapshots from
//! [`PendingWork`](policy::estimate::PendingWork) and [`Utilisation`](policy::estimate::Utilisation), and
//! [`policy::slo`] for what a worker may evict first. The beliefs about caches are a [`View`]. Each of several routers
//! ([`Routers`]) keeps its own beliefs and estimates.
//!
//! Load ρ is relative to the capacity without any cache: the trace's clock is stretched so that `Σ(α·prompt + β)/W` per
//! second is ρ (with the workers' mean α and β), and each turn's arrival is jittered by the seed. A turn never arrives
//! before its predecessor's response is complete. The first tenth of the turns warms the caches up and is not counted.
//! Results depend only on the seed: events at the same instant are processed in the order of creation.
//!
//! Rejected: preemption, and batching of prefills. Engines effectively run a prefill to its end (chunked prefill
//! interleaves decodes, see [`Decode`]), and a batch of two prefills finishes when their sum of work is done.

mod brain;
mod cache_rule;
mod events;
mod foreign;
mod holding;
pub mod late_binding;
mod ordered;
mod ranked_cache;
mod report;
mod routers;
mod run;
mod server;
mod view;
mod worker_cache;
mod workload;

#[cfg(test)]
mod tests;

pub use cache_rule::{CacheRule, UnknownCacheRule};
pub use ranked_cache::{BlockLease, RankedCache, RankedRule};
pub use report::{FleetReport, OwnObjective, TurnRecord};
pub use routers::{Routers, Sharing};
pub use run::{Choice, run, run_observed, run_while};
pub use view::View;
pub use workload::{Prompt, Workload, WorkloadError, mix};

use late_binding::Deferral;
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::route::Settings;
use policy::units::{Millis, Tokens};

/// One worker of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerSpec {
    /// Prefill cost. The router starts with this cost, and learns from responses.
    pub cost: PrefillCost,
    /// Capacity of the cache in tokens.
    pub capacity: Tokens,
}

/// The order in which a worker takes prefills from its queue, without preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come first served.
    #[default]
    Fifo,
    /// The shortest predicted prefill first.
    Sjf,
    /// The earliest [`due`](policy::route::Patience) time first: short turns overtake within limits, and no turn starves.
    Edf,
}

/// The speed at which a trace is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Load ρ, relative to the capacity without a cache.
    Load(f64),
    /// A multiple of the trace's own speed.
    Speed(f64),
}

/// The cost of responses. If all fields are zero, a response is complete with its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decode {
    /// Time between two tokens of a response.
    pub ms_per_token: f64,
    /// Tokens per chunk of a chunked prefill; 0 computes a prompt in one piece.
    pub chunk_tokens: u64,
    /// Time that each running response adds to each chunk of a prefill (or to a prefill in one piece).
    pub interference_ms: f64,
}

/// A change of a worker's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub worker: WorkerId,
    /// Time of the fault, as a share of the trace's length, from 0 to 1.
    pub at: f64,
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Prefills take this many times as long from now on. The router is not notified and has to learn it.
    Slow(f64),
    /// The worker and its cache are gone. Turns without a first token are sent elsewhere; the router notices at once.
    Die,
    /// The worker is back, at full speed, with an empty cache.
    Return,
}

/// The objective: `share` of turns start within `ttft`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// ξ_s: time-to-first-token objective.
    pub ttft: Millis,
    /// Share of turns that must meet the objective.
    pub share: f64,
    /// Q̂: expected next prompt before any observation.
    pub next_prompt: Tokens,
}

/// A fleet and its load.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetConfig {
    /// Workers; at least one.
    pub workers: Vec<WorkerSpec>,
    /// Policy and weights.
    pub settings: Settings,
    /// τ: time constant of the estimate of ρ.
    pub utilisation_window: Millis,
    pub cache: CacheRule,
    pub order: Order,
    pub routers: Routers,
    /// Settings under which turns wait in the router while their workers are busy, which applies only to a single
    /// router. `None` sends every turn at once.
    pub hold: Option<Deferral>,
    /// The router's view of the caches.
    pub view: View,
    /// Whether the router learns each worker's cost from its responses, or always uses [`WorkerSpec::cost`].
    pub learn_costs: bool,
    pub decode: Decode,
    pub target: Target,
    pub faults: Vec<Fault>,
    pub pace: Pace,
    /// Seed of jitter and losses.
    pub seed: u64,
    /// Maximum jitter of an arrival, either way, in seconds of the trace's clock.
    pub jitter_s: f64,
    /// Share of the turns at the start that are not counted.
    pub warm_up: f64,
    /// Whether to keep a record of every turn.
    pub per_turn: bool,
}

impl FleetConfig {
    /// Creates a fleet of `count` equal workers, with defaults for everything else.
    pub fn uniform(count: usize, cost: PrefillCost, capacity: Tokens) -> Self {
        Self {
            workers: vec![WorkerSpec { cost, capacity }; count],
            settings: Settings::default(),
            utilisation_window: Millis(60_000.0),
            cache: CacheRule::Lru,
            order: Order::Fifo,
            routers: Routers::default(),
            hold: None,
            view: View::Mirror,
            learn_costs: true,
            decode: Decode::default(),
            target: Target {
                ttft: Millis(500.0),
                share: 0.95,
                next_prompt: Tokens(200),
            },
            faults: Vec::new(),
            pace: Pace::Load(0.5),
            seed: 1,
            jitter_s: 1.5,
            warm_up: 0.1,
            per_turn: false,
        }
    }
}
