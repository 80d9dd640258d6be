//! A fleet under the routing policies: the router's own code, a discrete-event clock, no network.
//!
//! # What is simulated
//! W workers. Each is one prefill server with a queue (first come first served, shortest first, or earliest deadline
//! first) in front of a [`PrefixCache`](policy::cache::PrefixCache), the very one that the simulated engine
//! serves HTTP from. A prefill takes `β + α·u + γ·u·(h + u/2)` ms, where `h` is what the cache holds when the prefill
//! *starts*. Then the answer is decoded, which takes time and holds blocks, and may slow prefills down; by default it
//! is instantaneous, so that figures are of queueing and caching alone.
//!
//! Between trace and workers stands what the router is made of: [`policy::route::decide`] over snapshots from
//! [`PendingWork`](policy::estimate::PendingWork) and [`Utilisation`](policy::estimate::Utilisation), told of sends and
//! first tokens as the router is, and [`policy::slo`] for what a worker may drop first. What it believes about caches is
//! a [`View`]: the truth, the router's mirrors and index, or delayed and lossy events. Of several routers ([`Routers`]) each
//! has beliefs and books of its own, and hears of what the others do late, in part, or not at all.
//!
//! # Time
//! Load ρ is of the capacity without any cache: the trace's clock is stretched so that `Σ(α·prompt + β)/W` per second
//! is ρ (with the workers' mean α and β), and each turn's arrival is jittered by the seed. A turn never arrives before its predecessor's
//! answer is complete. The first tenth of the turns warms the caches up and is not counted.
//!
//! # Determinism
//! One seed, one result: events at the same instant are taken in the order in which they were made.
//!
//! Rejected: preemption, and batching of prefills. Engines run a prefill to its end in all but name (chunked prefill
//! interleaves decodes, see [`Decode`]), and a batch of two prefills finishes when their sum of work is done.

mod brain;
mod cache_rule;
mod events;
mod holding;
mod ordered;
mod ranked_rule;
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
pub use ranked_rule::RankedRule;
pub use report::{FleetReport, TurnRecord};
pub use routers::{Routers, Sharing};
pub use run::{Choice, run, run_observed, run_while};
pub use view::View;
pub use workload::{Workload, WorkloadError};

use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::route::Settings;
use policy::route::hold::Hold;
use policy::units::{Millis, Tokens};

/// One worker of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerSpec {
    /// What its prefill costs. The router begins with the same, and learns on.
    pub cost: PrefillCost,
    /// Tokens that its cache holds.
    pub capacity: Tokens,
}

/// In which order a worker takes prefills from its queue. None preempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come first served.
    #[default]
    Fifo,
    /// The shortest predicted prefill first.
    Sjf,
    /// The earliest [`due`](policy::route::due) first: short turns overtake within limits, and nobody waits for ever.
    Edf,
}

/// How fast the trace is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// ρ of the capacity without a cache.
    Load(f64),
    /// Times the trace's own speed.
    Speed(f64),
}

/// What answers cost. All zero: an answer is complete with its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decode {
    /// Between two tokens of an answer.
    pub ms_per_token: f64,
    /// Tokens per chunk of a chunked prefill; 0 computes a prompt in one piece.
    pub chunk_tokens: u64,
    /// What each running answer adds to each chunk of a prefill (or to a prefill in one piece).
    pub interference_ms: f64,
}

/// Something that happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// The worker.
    pub worker: WorkerId,
    /// When, as a share of the trace's length, from 0 to 1.
    pub at: f64,
    /// What.
    pub kind: FaultKind,
}

/// What can happen to a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// From now on everything takes this many times as long. The router is not told: it has to learn.
    Slow(f64),
    /// It is gone, and its cache with it. What it had is sent again elsewhere; the router notices at once.
    Die,
    /// It is back, at full speed, with an empty cache.
    Return,
}

/// The objective: `share` of turns start within `ttft`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// ξ_s.
    pub ttft: Millis,
    /// Share of turns that must meet it.
    pub share: f64,
    /// Q̂ before anything was learned.
    pub next_prompt: Tokens,
}

/// A fleet, and how it is driven.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetConfig {
    /// The workers; at least one.
    pub workers: Vec<WorkerSpec>,
    /// Policy and weights.
    pub settings: Settings,
    /// τ of the estimate of ρ.
    pub utilisation_window: Millis,
    /// What workers drop first.
    pub cache: CacheRule,
    /// Order of their queues.
    pub order: Order,
    /// The routers before them.
    pub routers: Routers,
    /// Whether turns wait in the router while their workers are busy; only where it is a single one.
    pub hold: Option<Hold>,
    /// What the router believes of their caches.
    pub view: View,
    /// Whether the router learns each worker's cost from its answers, or believes [`WorkerSpec::cost`] for ever.
    pub learn_costs: bool,
    /// Answers.
    pub decode: Decode,
    /// What has to be met.
    pub target: Target,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How fast the trace is played.
    pub pace: Pace,
    /// Seed of the jitter, and of losses.
    pub seed: u64,
    /// Largest change of an arrival, either way, in seconds of the trace's clock.
    pub jitter_s: f64,
    /// Share of the turns that are not counted.
    pub warm_up: f64,
    /// Whether to keep every turn's record.
    pub per_turn: bool,
}

impl FleetConfig {
    /// `count` equal workers, everything else at its default.
    #[must_use]
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
