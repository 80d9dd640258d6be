//! The choice: which worker serves a turn.
//!
//! [`decide`] is a function of a snapshot. It reads no clock, keeps no state and writes nothing; what then happens is
//! applied to the estimators and the index by the caller. A [`Decision`] carries every term of every worker's score, so
//! that the log line, the metric, the response header and the test all read the same struct.
//!
//! Each policy is one file with one function `score(&Snapshot, &Turn, &mut [Terms]) -> Reason`, which fills
//! [`Terms::score`] (lower is better, infinite means "not this one"). Picking the least score, and breaking ties, is
//! done here, once.

mod cache_aware;
mod cache_aware_smg;
mod consistent_hash;
mod due;
pub mod hold;
mod least_loaded;
mod least_ttft;
mod overrides;
mod power_of_two;
mod prefix_hash;
mod random;
mod round_robin;
mod settings;
mod tail;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use due::due;
pub use overrides::{Ask, Overridden, Override, Overrides, OwnWeights};
pub use settings::{CacheAware, PolicyName, Settings, UnknownPolicy, Weights};

use crate::cost::PrefillCost;
use crate::ids::{ConversationId, PrefixHash, WorkerId};
use crate::units::{Millis, Tokens};

/// One worker as the choice sees it, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its slot.
    pub id: WorkerId,
    /// Whether it may be given work at all: healthy, not draining, serves the model.
    pub ready: bool,
    /// What its prefill costs.
    pub cost: PrefillCost,
    /// What its first tokens take beside queue and prefill, where that is not in β: see [`crate::estimate::Overhead`].
    pub overhead: Millis,
    /// Predicted time before a request sent now would start its own prefill.
    pub wait: Millis,
    /// ρ: prefill work routed to it over the window, as a share of the window.
    pub utilisation: f64,
    /// S̄: the mean prefill routed to it over the window; zero where nothing was.
    pub mean_work: Millis,
    /// Requests sent and not yet finished.
    pub in_flight: u32,
    /// Tokens the index believes it holds; `cache_aware` calls this the size of its tree.
    pub indexed: Tokens,
    /// Conversations that live there, in any unit that all workers share: see [`crate::estimate::Homes`].
    pub conversations: f64,
}

/// Everything the choice may know about the fleet, taken at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The workers. The order carries no meaning but must match [`Turn::resident`].
    pub workers: &'a [WorkerView],
    /// Policy and weights in force.
    pub settings: &'a Settings,
    /// Number of this decision, counted by the caller: rotation and random tie-breaking come from it.
    pub sequence: u64,
}

/// Everything the choice may know about the turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Tokens of the whole prompt.
    pub prompt: Tokens,
    /// Leading prompt tokens resident on each worker, in the order of [`Snapshot::workers`].
    pub resident: &'a [Tokens],
    /// The turn's objective, for the `slo` weight.
    pub objective: Millis,
    /// Where the conversation's last turn went, for the `affinity` weight.
    pub last_worker: Option<WorkerId>,
    /// The conversation, for `consistent_hash`; without one that policy falls back to the fewest in flight.
    pub conversation: Option<ConversationId>,
    /// A key of how the prompt begins, for `prefix_hash`; without one that policy does the same.
    pub head: Option<PrefixHash>,
    /// The class of its objective, for [`Settings::classes`]; empty if it is of none.
    pub class: &'a str,
    /// What its request asks for.
    pub ask: Option<Ask<'a>>,
}

/// One worker's score, term by term. Costs in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it could be chosen.
    pub ready: bool,
    /// h: prompt tokens it holds.
    pub cached: Tokens,
    /// u: prompt tokens it would have to compute.
    pub uncached: Tokens,
    /// Predicted time before its own prefill starts.
    pub wait_ms: f64,
    /// α·u + γ·u·(h + u/2).
    pub marginal_ms: f64,
    /// β.
    pub fixed_ms: f64,
    /// What the first token takes beside queue and prefill; nothing where β is of the router's own clock.
    pub overhead_ms: f64,
    /// κ: what a millisecond of prefill costs the others, given the load.
    pub kappa: f64,
    /// Predicted milliseconds beyond the objective, times the `slo` weight.
    pub slo_ms: f64,
    /// What it costs to make this worker the conversation's home.
    pub home_ms: f64,
    /// Credit for being the conversation's last worker (negative).
    pub affinity_ms: f64,
    /// Random tie-breaking.
    pub spread_ms: f64,
    /// What the policy minimised; milliseconds under `tail`, the policy's own measure elsewhere.
    pub score: f64,
}

impl Terms {
    /// Predicted time to first token on this worker: what will be compared with what then happens.
    #[must_use]
    pub fn predicted_ttft(&self) -> Millis {
        Millis(self.wait_ms + self.overhead_ms) + self.prefill()
    }

    /// Predicted prefill: for how long the worker computes nothing else.
    #[must_use]
    pub fn prefill(&self) -> Millis {
        Millis(self.marginal_ms + self.fixed_ms)
    }
}

/// Which rule of the policy decided. A bounded set: it is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The least cost of all terms.
    LeastCost,
    /// The next in turn.
    Rotation,
    /// The fewest requests in flight.
    FewestInFlight,
    /// The load was out of balance, so the prefix did not count.
    Imbalance,
    /// It holds more of the prompt than the threshold asks.
    PrefixMatch,
    /// Nobody holds enough of the prompt; it has the smallest tree.
    SmallestTree,
    /// Drawn.
    Draw,
    /// Its place under the turn's key.
    Key,
    /// The worker that the rule would have taken was far above the mean load.
    Overload,
}

impl Reason {
    /// The name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeastCost => "least_cost",
            Self::Rotation => "rotation",
            Self::FewestInFlight => "fewest_in_flight",
            Self::Imbalance => "imbalance",
            Self::PrefixMatch => "prefix_match",
            Self::SmallestTree => "smallest_tree",
            Self::Draw => "draw",
            Self::Key => "key",
            Self::Overload => "overload",
        }
    }
}

/// The choice made, with everything that led to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The snapshot's sequence number.
    pub sequence: u64,
    /// The policy that made it.
    pub policy: PolicyName,
    /// Which overrides of everybody's settings acted.
    pub overridden: Overridden,
    /// Which of its rules decided.
    pub reason: Reason,
    /// Index of the chosen worker in `terms`.
    pub chosen: usize,
    /// Every worker's terms, in the snapshot's order.
    pub terms: Vec<Terms>,
}

impl Decision {
    /// The chosen worker's terms.
    #[must_use]
    pub fn chosen(&self) -> &Terms {
        &self.terms[self.chosen]
    }
}

/// Chooses a worker for the turn, or `None` if no worker is ready.
#[must_use]
pub fn decide(snapshot: &Snapshot<'_>, turn: &Turn<'_>) -> Option<Decision> {
    let mut terms: Vec<Terms> = snapshot
        .workers
        .iter()
        .enumerate()
        .map(|(i, worker)| base_terms(worker, i, turn))
        .collect();
    let own = snapshot.settings.for_turn(turn.class, turn.ask);
    let (settings, overridden) = match &own {
        Some((own, by)) => (own, *by),
        None => (snapshot.settings, Overridden::default()),
    };
    let snapshot = &Snapshot {
        settings,
        ..*snapshot
    };
    let policy = settings.policy;
    let reason = match policy {
        PolicyName::Tail => tail::score(snapshot, turn, &mut terms),
        PolicyName::RoundRobin => round_robin::score(snapshot, &mut terms),
        PolicyName::LeastLoaded => least_loaded::score(snapshot, &mut terms),
        PolicyName::CacheAware => cache_aware::score(snapshot, turn, &mut terms),
        PolicyName::CacheAwareSmg => cache_aware_smg::score(snapshot, turn, &mut terms),
        PolicyName::LeastTtft => least_ttft::score(&mut terms),
        PolicyName::Random => random::score(snapshot, &mut terms),
        PolicyName::PowerOfTwo => power_of_two::score(snapshot, &mut terms),
        PolicyName::ConsistentHash => consistent_hash::score(snapshot, turn, &mut terms),
        PolicyName::PrefixHash => prefix_hash::score(snapshot, turn, &mut terms),
    };
    let chosen = least(&terms, snapshot)?;
    Some(Decision {
        sequence: snapshot.sequence,
        policy,
        overridden,
        reason,
        chosen,
        terms,
    })
}

/// The terms that do not depend on the policy. A prompt's last token is always computed, however much is cached.
fn base_terms(worker: &WorkerView, index: usize, turn: &Turn<'_>) -> Terms {
    let resident = turn.resident.get(index).copied().unwrap_or_default();
    let cached = resident.min(turn.prompt.saturating_sub(Tokens(1)));
    let uncached = turn.prompt.saturating_sub(cached);
    Terms {
        worker: worker.id,
        ready: worker.ready,
        cached,
        uncached,
        wait_ms: worker.wait.0,
        marginal_ms: worker.cost.marginal(uncached, cached).0,
        fixed_ms: worker.cost.beta_ms,
        overhead_ms: worker.overhead.0,
        kappa: 1.0,
        slo_ms: 0.0,
        home_ms: 0.0,
        affinity_ms: 0.0,
        spread_ms: 0.0,
        score: f64::INFINITY,
    }
}

/// A number in [0, 1) that depends on its two arguments only, so that a decision can be replayed: SplitMix64's
/// finaliser.
fn unit_random(of: u64, worker: u32) -> f64 {
    let mut x = of
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(worker) << 32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Requests in flight of a ready worker in the mean; 0 without one.
fn mean_in_flight(workers: &[WorkerView]) -> f64 {
    let ready = || workers.iter().filter(|worker| worker.ready);
    let sum: f64 = ready().map(|worker| f64::from(worker.in_flight)).sum();
    sum / ready().count().max(1) as f64
}

/// The ready worker of least score. Equal scores go to the fewest requests in flight, and equal ones of those take
/// turns, so that an idle fleet fills evenly instead of piling up on its first worker.
fn least(terms: &[Terms], snapshot: &Snapshot<'_>) -> Option<usize> {
    let count = terms.len();
    let start = if count == 0 {
        0
    } else {
        (snapshot.sequence % count as u64) as usize
    };
    (0..count)
        .map(|step| (start + step) % count)
        .filter(|&i| terms[i].ready && terms[i].score < f64::INFINITY)
        .min_by(|&a, &b| {
            let load = |i: usize| snapshot.workers[i].in_flight;
            terms[a]
                .score
                .total_cmp(&terms[b].score)
                .then_with(|| load(a).cmp(&load(b)))
        })
}
