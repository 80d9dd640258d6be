//! The choice of the worker that serves a turn.
//!
//! [`decide`] is a function of a snapshot. It reads no clock, keeps no state and writes nothing; the caller applies the
//! outcome to the estimators and the index. A [`Decision`] carries every term of every worker's score, so the log line,
//! the metric, the response header and the test read the same struct.
//!
//! Each policy is one file with one function `score(&Snapshot, &Turn, &mut [Terms]) -> Reason`, which fills
//! [`Terms::score`] (lower is better, infinite excludes the worker). Picking the least score and breaking ties is done
//! once, here.

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

/// One worker's state at the moment of the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its slot.
    pub id: WorkerId,
    /// Whether the worker may be chosen: healthy, not draining, and serving the model.
    pub ready: bool,
    /// Cost of prefill.
    pub cost: PrefillCost,
    /// Time to first token beyond queue and prefill, where β does not include it: see [`crate::estimate::Overhead`].
    pub overhead: Millis,
    /// Predicted time before a request sent now would start its own prefill.
    pub wait: Millis,
    /// ρ: prefill work routed to it over the window, as a share of the window.
    pub utilisation: f64,
    /// S̄: the mean prefill routed to it over the window; zero without any.
    pub mean_work: Millis,
    /// Requests sent and not yet finished.
    pub in_flight: u32,
    /// Tokens believed resident; the tree size in `cache_aware`.
    pub indexed: Tokens,
    /// Conversations whose home it is, in any unit that all workers share: see [`crate::estimate::Homes`].
    pub conversations: f64,
}

/// The state of the fleet at the moment of the choice.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The workers, in the same order as [`Turn::resident`].
    pub workers: &'a [WorkerView],
    /// Policy and weights in force.
    pub settings: &'a Settings,
    /// Sequence number of this decision, the source of rotation and random tie-breaking.
    pub sequence: u64,
}

/// The turn to place.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Tokens of the whole prompt.
    pub prompt: Tokens,
    /// Leading prompt tokens resident on each worker, in the order of [`Snapshot::workers`].
    pub resident: &'a [Tokens],
    /// The turn's objective, for the `slo` weight.
    pub objective: Millis,
    /// The worker of the conversation's last turn, for the `affinity` weight.
    pub last_worker: Option<WorkerId>,
    /// The conversation, for `consistent_hash`; without one that policy falls back to `least_loaded`.
    pub conversation: Option<ConversationId>,
    /// A hash of the prompt's beginning, for `prefix_hash`; without one that policy falls back to `least_loaded`.
    pub head: Option<PrefixHash>,
    /// The class of its objective, for [`Settings::classes`]; empty without one.
    pub class: &'a str,
    /// The override that its request asks for.
    pub ask: Option<Ask<'a>>,
}

/// One worker's score, term by term. Costs in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// The worker.
    pub worker: WorkerId,
    /// Whether the worker could be chosen.
    pub ready: bool,
    /// h: cached prompt tokens.
    pub cached: Tokens,
    /// u: prompt tokens to compute.
    pub uncached: Tokens,
    /// Predicted time before its own prefill starts.
    pub wait_ms: f64,
    /// α·u + γ·u·(h + u/2).
    pub marginal_ms: f64,
    /// β.
    pub fixed_ms: f64,
    /// Time to first token beyond queue and prefill; zero where β is measured by the router's own clock.
    pub overhead_ms: f64,
    /// κ: the cost of a millisecond of prefill, to this turn and to those behind it.
    pub kappa: f64,
    /// Predicted milliseconds beyond the objective, times the `slo` weight.
    pub slo_ms: f64,
    /// Cost of making this worker the conversation's home.
    pub home_ms: f64,
    /// Credit for being the conversation's last worker (negative).
    pub affinity_ms: f64,
    /// Random tie-breaking.
    pub spread_ms: f64,
    /// The value that the policy minimised; milliseconds under `tail`, the policy's own measure elsewhere.
    pub score: f64,
}

impl Terms {
    /// Returns the predicted time to first token, which is later compared with the observed one.
    #[must_use]
    pub fn predicted_ttft(&self) -> Millis {
        Millis(self.wait_ms + self.overhead_ms) + self.prefill()
    }

    /// Returns the predicted prefill time.
    #[must_use]
    pub fn prefill(&self) -> Millis {
        Millis(self.marginal_ms + self.fixed_ms)
    }
}

/// The rule of the policy that decided. A bounded set: it is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The least cost of all terms.
    LeastCost,
    /// The next in rotation.
    Rotation,
    /// The fewest requests in flight.
    FewestInFlight,
    /// The load was out of balance, so the prefix did not count.
    Imbalance,
    /// The worker holds more of the prompt than the threshold.
    PrefixMatch,
    /// No worker holds enough of the prompt; this one has the smallest tree.
    SmallestTree,
    /// A random draw.
    Draw,
    /// The order of workers under the turn's key.
    Key,
    /// The worker preferred by the rule was far above the mean load.
    Overload,
}

impl Reason {
    /// Returns the name used in metrics and logs.
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

/// The chosen worker and all terms of the choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The snapshot's sequence number.
    pub sequence: u64,
    /// The policy that made it.
    pub policy: PolicyName,
    /// Which overrides of the default settings acted.
    pub overridden: Overridden,
    /// The rule that decided.
    pub reason: Reason,
    /// Index of the chosen worker in `terms`.
    pub chosen: usize,
    /// The terms of every worker, in the snapshot's order.
    pub terms: Vec<Terms>,
}

impl Decision {
    /// Returns the chosen worker's terms.
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

/// Returns the terms that do not depend on the policy. A prompt's last token is always computed, however much is
/// cached.
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

/// Returns a number in [0, 1) that depends on the arguments only, so that a decision can be replayed: SplitMix64's
/// finaliser.
fn unit_random(of: u64, worker: u32) -> f64 {
    let mut x = of
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(worker) << 32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the mean number of requests in flight over the ready workers; 0 without any.
fn mean_in_flight(workers: &[WorkerView]) -> f64 {
    let ready = || workers.iter().filter(|worker| worker.ready);
    let sum: f64 = ready().map(|worker| f64::from(worker.in_flight)).sum();
    sum / ready().count().max(1) as f64
}

/// Returns the ready worker of least score. Ties go to the fewest requests in flight, then rotate, so that an idle
/// fleet fills evenly.
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
