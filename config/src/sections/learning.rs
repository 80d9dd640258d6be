//! Learning from responses, and hints to workers: `[learning]`, `[hints]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use policy::hint_rule::HintRule;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsCountOrNever, AsPolicySeconds};

/// Learning of costs and habits from responses while the router serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    /// Whether each worker's α, β and γ are learned from its responses. Off: they stay as configured.
    pub costs: bool,
    /// Time in seconds without a response over which the error of a worker's estimate grows until the worker may have
    /// become twice as fast, so that a slow worker is tried again. The estimate itself stays.
    #[serde(rename = "fade_s", with = "AsPolicySeconds")]
    #[schemars(range(min = 1, max = 604_800))]
    pub fade: Millis,
    /// Whether next prompts, responses and returns of conversations are predicted by traffic class. Off:
    /// `objective.next_prompt_tokens` is used.
    pub habits: bool,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            costs: true,
            fade: Millis(60_000.0),
            habits: true,
        }
    }
}

/// Hints to workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hints {
    /// Rule by which workers evict before the least recently used.
    pub rule: HintRule,
    /// The rule of single workers in place of `rule`, by the worker's name.
    pub workers: BTreeMap<String, HintRule>,
    /// Seconds after which a worker discards a hint.
    #[serde(rename = "ttl_s", with = "AsPolicySeconds")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub ttl: Millis,
    /// Whether a request carries the hint about its own conversation.
    pub in_request: bool,
    /// Whether hints are sent outside of requests: trims and ends of conversations, protection of shared prefixes.
    pub out_of_band: bool,
    /// Number of conversations with a common prefix from which that prefix is protected on the workers that hold it. 0:
    /// never.
    #[serde(with = "AsCountOrNever")]
    #[schemars(range(max = 1_000_000))]
    pub protect_from: Option<NonZeroU32>,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            rule: HintRule::default(),
            workers: BTreeMap::new(),
            ttl: Millis(600_000.0),
            in_request: true,
            out_of_band: true,
            protect_from: NonZeroU32::new(8),
        }
    }
}

impl Hints {
    /// Returns the rule of the worker with this name.
    #[must_use]
    pub fn rule_of(&self, worker: &str) -> HintRule {
        self.workers.get(worker).copied().unwrap_or(self.rule)
    }
}
