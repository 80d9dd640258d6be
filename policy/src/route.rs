//! The choice of the worker that serves a turn.
//!
//! [`decide`] is a function of a snapshot: it reads no clock, keeps no state and writes nothing. It picks the least
//! score and breaks ties. Each policy is one file with one function `score(&Snapshot, &Turn, &mut [Terms]) -> Reason`,
//! which fills [`Terms::score`] (lower is better, infinite excludes the worker).

mod cache_aware;
mod cache_aware_smg;
mod consistent_hash;
mod due;
mod least_loaded;
mod least_ttft;
mod overrides;
mod power_of_two;
mod prefix_hash;
mod random;
mod round_robin;
mod settings;
mod tail;
mod terms;
mod weights;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use cache_aware::CacheAware;
pub use due::Patience;
pub use overrides::{Ask, Overridden, Override, Overrides};
pub use settings::Settings;
pub use tail::{parts, split};
pub use terms::{Costs, Part, Terms};
pub use weights::{OwnWeights, WeightName, WeightSpec, Weights};

use crate::cost::PrefillCost;
use crate::ids::{ConversationId, PrefixHash, WorkerId};
use crate::units::{Millis, Tokens};

/// One worker's state at the moment of the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// The worker's slot.
    pub id: WorkerId,
    /// Whether the worker may be chosen: healthy, not draining, and serving the model.
    pub ready: bool,
    /// The prefill cost in force.
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
    /// Conversations whose home is this worker, in a unit that all workers share: see
    /// [`crate::estimate::ConversationCounts`].
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
    /// Name of the turn's class of objective, for [`Settings::classes`]; empty without one.
    pub class: &'a str,
    /// The override that the turn's request asks for.
    pub ask: Option<Ask<'a>>,
}

macro_rules! policies {
    ($($(#[doc = $meaning:literal])+ $variant:ident: $module:ident;)+) => {
        /// The routing policies, by their names in configuration, metrics and reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum PolicyName {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl PolicyName {
            /// Every policy, in the order of the documentation.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$variant),+];

            /// Every policy's name.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($module)),+];

            /// Returns the name used in configuration.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($module)),+
                }
            }

            /// Returns the policy's rule, in a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($meaning),+).trim_ascii()),+
                }
            }

            fn score(self, snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
                match self {
                    $(Self::$variant => $module::score(snapshot, turn, terms)),+
                }
            }
        }
    };
}

policies! {
    /// The least predicted time to first token, plus the load that a miss causes.
    Tail: tail;
    /// Each ready worker in turn.
    RoundRobin: round_robin;
    /// The fewest requests in flight.
    LeastLoaded: least_loaded;
    /// SGLang's rule: the holder of the prefix unless the load is out of balance, else the smallest tree.
    CacheAware: cache_aware;
    /// The rule of SMG, SGLang's successor gateway: the holder of the prefix unless it is far above the mean load.
    CacheAwareSmg: cache_aware_smg;
    /// Least predicted time to first token of this turn alone: `tail` with κ = 1.
    LeastTtft: least_ttft;
    /// Any ready worker, by the decision's sequence number.
    Random: random;
    /// The one of two random workers that has fewer requests in flight.
    PowerOfTwo: power_of_two;
    /// A worker by hash of the conversation, whatever its load.
    ConsistentHash: consistent_hash;
    /// A worker by hash of the prompt's beginning, unless it is far above the mean load.
    PrefixHash: prefix_hash;
}

#[expect(
    clippy::derivable_impls,
    reason = "the table names the variants, and this one of them"
)]
impl Default for PolicyName {
    fn default() -> Self {
        Self::Tail
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for an unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`; the policies are {names}", names = PolicyName::NAMES.join(", "))]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $variant:ident: $name:literal;)+) => {
        /// The rule of the policy that decided. A bounded set: it is a metric label.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl Reason {
            /// Every reason's name.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Returns the name used in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

reasons! {
    /// The least cost of all terms.
    LeastCost: "least_cost";
    /// The next in rotation.
    Rotation: "rotation";
    /// The fewest requests in flight.
    FewestInFlight: "fewest_in_flight";
    /// The load was out of balance, so the prefix did not count.
    Imbalance: "imbalance";
    /// The worker holds more of the prompt than the threshold.
    PrefixMatch: "prefix_match";
    /// No worker holds enough of the prompt; this one has the smallest tree.
    SmallestTree: "smallest_tree";
    /// A random draw.
    Draw: "draw";
    /// The order of workers under the turn's key.
    Key: "key";
    /// The worker preferred by the rule was far above the mean load.
    Overload: "overload";
}

/// The chosen worker and all terms of the choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The snapshot's sequence number.
    pub sequence: u64,
    /// Policy that made the decision.
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
    let reason = policy.score(snapshot, turn, &mut terms);
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

/// Returns the terms that do not depend on the policy. A prompt's last token is always computed.
fn base_terms(worker: &WorkerView, index: usize, turn: &Turn<'_>) -> Terms {
    let resident = turn.resident.get(index).copied().unwrap_or_default();
    let cached = resident.min(turn.prompt.saturating_sub(Tokens(1)));
    let uncached = turn.prompt.saturating_sub(cached);
    Terms {
        ready: worker.ready,
        cached,
        uncached,
        wait_ms: worker.wait.0,
        marginal_ms: worker.cost.marginal(uncached, cached).0,
        fixed_ms: worker.cost.beta_ms,
        overhead_ms: worker.overhead.0,
        ..Terms::unscored(worker.id)
    }
}

/// Returns a number in [0, 1) that depends on the arguments only (SplitMix64's finaliser).
fn unit_random(of: u64, worker: u32) -> f64 {
    let mut x = of
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(worker) << 32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn mean_in_flight(workers: &[WorkerView]) -> f64 {
    let ready = || workers.iter().filter(|worker| worker.ready);
    let sum: f64 = ready().map(|worker| f64::from(worker.in_flight)).sum();
    sum / ready().count().max(1) as f64
}

/// Returns the ready worker of least score. Ties go to the fewest requests in flight, then rotate.
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
