//! Learning from responses, and hints to workers: `[learning]`, `[hints]`.

use std::num::NonZeroU32;

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

/// What workers evict before the least recently used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HintRule {
    /// Ends of conversations that the router names when a worker needs room: those of least value, queues included.
    #[default]
    QueueAware,
    /// What the worker's objective leaves over: of a conversation of L tokens, those past L + Q̂ − ξ.
    TLru,
    /// Both.
    Both,
    /// Nothing: no hint and no objective is sent.
    Off,
}

impl HintRule {
    /// Returns whether the router names ends when a worker needs room.
    #[must_use]
    pub fn names_ends(self) -> bool {
        matches!(self, Self::QueueAware | Self::Both)
    }

    /// Returns whether workers evict by ξ.
    #[must_use]
    pub fn is_t_lru(self) -> bool {
        matches!(self, Self::TLru | Self::Both)
    }

    /// Returns the name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueAware => "queue-aware",
            Self::TLru => "t-lru",
            Self::Both => "both",
            Self::Off => "off",
        }
    }
}

/// Hints to workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hints {
    /// What workers evict first.
    pub rule: HintRule,
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
            ttl: Millis(600_000.0),
            in_request: true,
            out_of_band: true,
            protect_from: NonZeroU32::new(8),
        }
    }
}
