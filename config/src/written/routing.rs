//! The routing policy: `[routing]`.

use std::collections::BTreeMap;

use policy::route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The routing policy, which selects the worker for a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Policy: `tail` minimises the predicted time to first token plus the load that a miss causes; the others are
    /// common policies, for comparison.
    #[schemars(with = "String", extend("enum" = route::PolicyName::ALL))]
    pub policy: route::PolicyName,
    /// Upper bound of κ = 1 + ρ/(1 − ρ), the factor by which a busy worker is charged for a miss.
    #[schemars(range(min = 1, max = 1e6))]
    pub kappa_max: f64,
    /// Window, in seconds, over which a worker's utilisation ρ is measured.
    #[schemars(range(min = 0.1, max = 86_400))]
    pub utilisation_window_s: f64,
    /// Initial tokens per byte of text, until a model's responses show the actual ratio.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 4))]
    pub tokens_per_byte: f64,
    /// Weights of the `tail` policy. The defaults give the plain formula.
    pub weights: Weights,
    /// Thresholds of the `cache_aware` policy.
    pub cache_aware: CacheAware,
    /// Overrides for the turns of a class of `[[objective.classes]]`, by its name; `header` stands for turns with an
    /// objective in a header. Omitted keys keep their general value.
    #[schemars(extend("maxProperties" = 64))]
    pub classes: BTreeMap<String, Override>,
    /// Overrides for turns that request them: `x-tailroute-policy: NAME`. Omitted keys keep the value for the turn's
    /// class. Names are letters, digits, `-`, `_` and `.`.
    #[schemars(extend("maxProperties" = 64))]
    pub named: BTreeMap<String, Override>,
    /// Overrides that a turn may request in its `x-tailroute-policy` header, which is not forwarded to workers. If
    /// nothing may be requested, the header is ignored; otherwise a request for anything else is answered 400.
    pub requests: Requests,
}

impl Default for Routing {
    fn default() -> Self {
        let route::Settings {
            policy, kappa_max, ..
        } = route::Settings::default();
        Self {
            policy,
            kappa_max,
            utilisation_window_s: 60.0,
            tokens_per_byte: 0.25,
            weights: Weights::default(),
            cache_aware: CacheAware::default(),
            classes: BTreeMap::new(),
            named: BTreeMap::new(),
            requests: Requests::default(),
        }
    }
}

/// Overrides that turns may request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Requests {
    /// Whether they may request a name of `[routing.named]`.
    pub named: bool,
    /// Weights that they may set, as in `x-tailroute-policy: slo=2,locality=0.5`.
    pub weights: Vec<WeightName>,
}

/// A weight of the `tail` policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "as in `Weights`")]
pub enum WeightName {
    Locality,
    Home,
    Load,
    Slo,
    AffinityMs,
    SpreadMs,
}

impl WeightName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Locality => "locality",
            Self::Home => "home",
            Self::Load => "load",
            Self::Slo => "slo",
            Self::AffinityMs => "affinity_ms",
            Self::SpreadMs => "spread_ms",
        }
    }

    /// Returns the largest value; the least is 0.
    #[must_use]
    pub fn most(self) -> f64 {
        match self {
            Self::AffinityMs | Self::SpreadMs => 1e9,
            _ => 1e6,
        }
    }
}

/// Overrides for some turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Override {
    /// Policy.
    #[schemars(with = "Option<String>", extend("enum" = policies_or_none()))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<route::PolicyName>,
    /// Upper bound of κ.
    #[schemars(range(min = 1, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kappa_max: Option<f64>,
    /// Weights of the `tail` policy that differ.
    #[serde(skip_serializing_if = "is_empty")]
    pub weights: OwnWeights,
}

fn policies_or_none() -> Vec<Option<route::PolicyName>> {
    route::PolicyName::ALL
        .into_iter()
        .map(Some)
        .chain([None])
        .collect()
}

fn is_empty(weights: &OwnWeights) -> bool {
    *weights == OwnWeights::default()
}

/// Weights of the `tail` policy that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OwnWeights {
    /// Multiplies κ's excess over 1.
    #[schemars(range(min = 0, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<f64>,
    /// Multiplies the cost of placing a conversation on a worker with many others.
    #[schemars(range(min = 0, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home: Option<f64>,
    /// Multiplies the predicted wait.
    #[schemars(range(min = 0, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Extra cost per millisecond predicted beyond the objective.
    #[schemars(range(min = 0, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<f64>,
    /// Milliseconds of credit for the conversation's last worker.
    #[schemars(range(min = 0, max = 1e9))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_ms: Option<f64>,
    /// Milliseconds of random tie-breaking.
    #[schemars(range(min = 0, max = 1e9))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_ms: Option<f64>,
}

/// Weights of the `tail` policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Multiplies κ's excess over 1: how much a miss is charged for the load that it causes.
    #[schemars(range(min = 0, max = 1e6))]
    pub locality: f64,
    /// Multiplies the cost of placing a conversation on a worker with many others: a mean prefill times the worker's
    /// share of turns and of conversations.
    #[schemars(range(min = 0, max = 1e6))]
    pub home: f64,
    /// Multiplies the predicted wait.
    #[schemars(range(min = 0, max = 1e6))]
    pub load: f64,
    /// Extra cost per millisecond predicted beyond the objective.
    #[schemars(range(min = 0, max = 1e6))]
    pub slo: f64,
    /// Milliseconds of credit for the conversation's last worker.
    #[schemars(range(min = 0, max = 1e9))]
    pub affinity_ms: f64,
    /// Milliseconds of random tie-breaking.
    #[schemars(range(min = 0, max = 1e9))]
    pub spread_ms: f64,
}

impl Default for Weights {
    fn default() -> Self {
        let route::Weights {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        } = route::Weights::default();
        Self {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        }
    }
}

/// Thresholds of the `cache_aware` policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAware {
    /// Share of the prompt that a worker must hold to be selected for it.
    #[schemars(range(min = 0, max = 1))]
    pub match_threshold: f64,
    /// The fleet is out of balance if the busiest worker has more than this many requests above the least busy one …
    pub imbalance_abs: u32,
    /// … and more than this many times the requests of the least busy one.
    #[schemars(range(min = 1, max = 1e6))]
    pub imbalance_rel: f64,
}

impl Default for CacheAware {
    fn default() -> Self {
        let route::CacheAware {
            match_threshold,
            imbalance_abs,
            imbalance_rel,
        } = route::CacheAware::default();
        Self {
            match_threshold,
            imbalance_abs,
            imbalance_rel,
        }
    }
}
