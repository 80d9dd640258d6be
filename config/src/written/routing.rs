//! The choice of a worker: `[routing]`.

use std::collections::BTreeMap;

use policy::route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a worker is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// The rule: `tail` minimises predicted time to first token plus the load that a miss causes; the others are the
    /// field's rules, for comparison.
    #[schemars(with = "String", extend("enum" = route::PolicyName::ALL))]
    pub policy: route::PolicyName,
    /// Upper bound of κ = 1 + ρ/(1 − ρ), the factor by which a busy worker is charged for a miss.
    #[schemars(range(min = 1, max = 1e6))]
    pub kappa_max: f64,
    /// Window, in seconds, over which a worker's utilisation ρ is measured.
    #[schemars(range(min = 0.1, max = 86_400))]
    pub utilisation_window_s: f64,
    /// Tokens per byte of text that a model is assumed to have until its answers have shown the real ratio.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 4))]
    pub tokens_per_byte: f64,
    /// Weights of the `tail` rule. The defaults make the plain formula.
    pub weights: Weights,
    /// Thresholds of the `cache_aware` rule.
    pub cache_aware: CacheAware,
    /// What differs for the turns of a class of `[[objective.classes]]`, by its name; `header` is of turns that bring
    /// their own objective along. What is left out is as for everybody.
    #[schemars(extend("maxProperties" = 64))]
    pub classes: BTreeMap<String, Override>,
    /// What differs for turns that ask for it: `x-tailroute-policy: NAME`. What is left out is as for their class. Names
    /// are letters, digits, `-`, `_` and `.`.
    #[schemars(extend("maxProperties" = 64))]
    pub named: BTreeMap<String, Override>,
    /// What a turn may ask for with its `x-tailroute-policy` header, which workers never see. Where it may ask for
    /// nothing, the header is ignored; where it may, one that asks for anything else is answered 400.
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

/// What turns may ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Requests {
    /// Whether they may ask for a name of `[routing.named]`.
    pub named: bool,
    /// Weights that they may set themselves, as in `x-tailroute-policy: slo=2,locality=0.5`.
    pub weights: Vec<WeightName>,
}

/// A weight of the `tail` rule.
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
    /// The name.
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

    /// The largest value; the least is 0.
    #[must_use]
    pub fn most(self) -> f64 {
        match self {
            Self::AffinityMs | Self::SpreadMs => 1e9,
            _ => 1e6,
        }
    }
}

/// What differs for some turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Override {
    /// The rule.
    #[schemars(with = "Option<String>", extend("enum" = policies_or_none()))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<route::PolicyName>,
    /// Upper bound of κ.
    #[schemars(range(min = 1, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kappa_max: Option<f64>,
    /// Weights of the `tail` rule, as far as they differ.
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

/// Weights of the `tail` rule, as far as they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OwnWeights {
    /// Multiplies κ's excess over 1.
    #[schemars(range(min = 0, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<f64>,
    /// Multiplies what it costs a conversation to live among many.
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

/// Weights of the `tail` rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Multiplies κ's excess over 1: how much a miss is charged for the load that it causes.
    #[schemars(range(min = 0, max = 1e6))]
    pub locality: f64,
    /// Multiplies what it costs a conversation to live among many: a mean prefill times the worker's share of turns and
    /// of conversations.
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

/// Thresholds of the `cache_aware` rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAware {
    /// Share of the prompt that a worker must hold to be chosen for it.
    #[schemars(range(min = 0, max = 1))]
    pub match_threshold: f64,
    /// Out of balance if the busiest worker has more than this many requests above the idlest …
    pub imbalance_abs: u32,
    /// … and more than this many times the idlest one's requests.
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
