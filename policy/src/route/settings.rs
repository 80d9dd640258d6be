//! Policies and weights that an operator can set.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::overrides::Overrides;

/// The routing policies, by their names in configuration, metrics and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Least `wait + κ·(α·u + γ·u·(h + u/2)) + β`.
    #[default]
    Tail,
    /// Each ready worker in turn.
    RoundRobin,
    /// The fewest requests in flight.
    LeastLoaded,
    /// SGLang's rule: the holder of the prefix unless the load is out of balance, else the smallest tree.
    CacheAware,
    /// SMG's rule: the holder of the prefix unless it is far above the mean load.
    CacheAwareSmg,
    /// Least predicted time to first token of this turn alone: `tail` with κ = 1.
    LeastTtft,
    /// Any ready worker, by the decision's sequence number.
    Random,
    /// The one of two random workers that has fewer requests in flight.
    PowerOfTwo,
    /// A worker by hash of the conversation, whatever its load.
    ConsistentHash,
    /// A worker by hash of the prompt's beginning, unless it is far above the mean load.
    PrefixHash,
}

impl PolicyName {
    /// Every policy, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Tail,
        Self::RoundRobin,
        Self::LeastLoaded,
        Self::CacheAware,
        Self::CacheAwareSmg,
        Self::LeastTtft,
        Self::Random,
        Self::PowerOfTwo,
        Self::ConsistentHash,
        Self::PrefixHash,
    ];

    /// Returns the name used in configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tail => "tail",
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
            Self::CacheAware => "cache_aware",
            Self::CacheAwareSmg => "cache_aware_smg",
            Self::LeastTtft => "least_ttft",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::ConsistentHash => "consistent_hash",
            Self::PrefixHash => "prefix_hash",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for an unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`; the policies are {names}", names = PolicyName::ALL.map(PolicyName::as_str).join(", "))]
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

impl Weights {
    /// The names of the weights in configuration.
    pub const NAMES: [&'static str; 6] = ["locality", "home", "load", "slo", "affinity_ms", "spread_ms"];
}

/// Weights of the `tail` rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Multiplies κ's excess over 1: how much a miss is charged for the load it causes. 1 is the full theoretical
    /// charge; in practice part of the work delays no other turn.
    pub locality: f64,
    /// Multiplies the cost of a crowded home: a mean prefill times the worker's share of turns and of conversations.
    pub home: f64,
    /// Multiplies the predicted wait.
    pub load: f64,
    /// Extra cost per millisecond predicted beyond the turn's objective.
    pub slo: f64,
    /// Milliseconds of credit for the conversation's last worker.
    pub affinity_ms: f64,
    /// Milliseconds of random tie-breaking.
    pub spread_ms: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            locality: 0.8,
            home: 0.1,
            load: 1.0,
            slo: 0.0,
            affinity_ms: 0.0,
            spread_ms: 0.0,
        }
    }
}

/// Thresholds of the `cache_aware` rule, with SGLang's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAware {
    /// Share of the prompt that a worker must hold to be chosen for its prefix.
    pub match_threshold: f64,
    /// The load is out of balance if the busiest worker has more than this many requests above the idlest …
    pub imbalance_abs: u32,
    /// … and more than this many times its requests.
    pub imbalance_rel: f64,
}

impl Default for CacheAware {
    fn default() -> Self {
        Self {
            match_threshold: 0.5,
            imbalance_abs: 32,
            imbalance_rel: 1.0001,
        }
    }
}

/// Policy and weights, replaced as one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The policy in force.
    pub policy: PolicyName,
    /// Weights of `tail`.
    pub weights: Weights,
    /// Upper bound of κ.
    pub kappa_max: f64,
    /// Thresholds of `cache_aware`.
    pub cache_aware: CacheAware,
    /// Overrides for the turns of a class, by the class's name.
    pub classes: Overrides,
    /// Overrides that requests can ask for, by name.
    pub named: Overrides,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            weights: Weights::default(),
            kappa_max: 30.0,
            cache_aware: CacheAware::default(),
            classes: Overrides::new(),
            named: Overrides::new(),
        }
    }
}
