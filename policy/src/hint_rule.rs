//! The rules of hints.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The blocks that workers evict before the least recently used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HintRule {
    /// Ends of conversations that the router names when a worker needs room: those of least value, queues included.
    #[default]
    QueueAware,
    /// Tokens that the worker's objective leaves over: of a conversation of L tokens, those past L + Q̂ − ξ.
    TLru,
    /// The ends that the router names, and the tokens that the worker's objective leaves over.
    Both,
    /// Nothing: no hint and no objective is sent.
    Off,
}

/// The error for an unknown rule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a rule of hints; there are queue-aware, t-lru, both, off")]
pub struct UnknownHintRule(pub String);

impl FromStr for HintRule {
    type Err = UnknownHintRule;

    fn from_str(text: &str) -> Result<Self, UnknownHintRule> {
        let all = [Self::QueueAware, Self::TLru, Self::Both, Self::Off];
        let found = all.into_iter().find(|rule| rule.as_str() == text);
        found.ok_or_else(|| UnknownHintRule(text.to_owned()))
    }
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
