//! Eviction policies of a fleet's workers. A [`PrefixCache`](policy::cache::PrefixCache), LRU with an evict-first band,
//! implements every policy that sets how much of a finished conversation is worth keeping. Policies that rank blocks by
//! something other than recency are a caller's ([`RankedRule`]).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::ranked_cache::RankedRule;
use policy::units::Tokens;

/// The blocks that a worker evicts before the least recently used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheRule {
    /// No blocks: plain LRU.
    #[default]
    Lru,
    /// Blocks past the TEL-safe budget of the objective, at any load.
    TLru,
    /// Blocks past the budget of this ξ in uncached tokens, whatever the objective.
    TLruAt(Tokens),
    /// Queue-aware T-LRU ([`policy::tail`]): the ends of least value, marked just in time.
    Tail,
    /// Blocks past the budget of each worker's adaptive ξ ([`policy::slo::feedback`]).
    AdaptiveTLru,
    /// Queue-aware T-LRU, and blocks past the budget of each worker's adaptive ξ.
    Both,
    /// Conversations shorter than this.
    Threshold(Tokens),
    /// Conversations after their last turn (hindsight).
    EndLru,
    /// Ended conversations, and blocks past the budget with the true next prompt (hindsight).
    LengthAware,
    /// The blocks of least rank. Not among the names that are parsed.
    Ranked(RankedRule),
}

impl CacheRule {
    /// Returns whether the ends of least value are named just in time.
    #[must_use]
    pub fn names_ends(self) -> bool {
        matches!(self, Self::Tail | Self::Both)
    }

    /// Returns whether workers evict by an adaptive ξ.
    #[must_use]
    pub fn adapts_xi(self) -> bool {
        matches!(self, Self::AdaptiveTLru | Self::Both)
    }
}

/// The error for an unknown rule name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a cache policy of a fleet; there are lru, t-lru[:TOKENS], tail, adaptive-t-lru, both, threshold-lru[:TOKENS], end-lru, length-aware"
)]
pub struct UnknownCacheRule(pub String);

impl fmt::Display for CacheRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lru => f.write_str("lru"),
            Self::TLru => f.write_str("t-lru"),
            Self::TLruAt(xi) => write!(f, "t-lru:{}", xi.0),
            Self::Tail => f.write_str("tail"),
            Self::AdaptiveTLru => f.write_str("adaptive-t-lru"),
            Self::Both => f.write_str("both"),
            Self::Threshold(tokens) => write!(f, "threshold-lru:{}", tokens.0),
            Self::EndLru => f.write_str("end-lru"),
            Self::LengthAware => f.write_str("length-aware"),
            Self::Ranked(rule) => rule.fmt(f),
        }
    }
}

impl FromStr for CacheRule {
    type Err = UnknownCacheRule;

    fn from_str(text: &str) -> Result<Self, UnknownCacheRule> {
        match text {
            "lru" => Ok(Self::Lru),
            "t-lru" => Ok(Self::TLru),
            "tail" => Ok(Self::Tail),
            "adaptive-t-lru" => Ok(Self::AdaptiveTLru),
            "both" => Ok(Self::Both),
            "threshold-lru" => Ok(Self::Threshold(Tokens(1024))),
            // Alias: the private-cache policy of this name, which also keeps budgets.
            "end-lru" | "end-aware" => Ok(Self::EndLru),
            "length-aware" => Ok(Self::LengthAware),
            _ => with_tokens(text).ok_or_else(|| UnknownCacheRule(text.to_owned())),
        }
    }
}

fn with_tokens(text: &str) -> Option<CacheRule> {
    let (name, tokens) = text.split_once(':')?;
    let tokens = Tokens(tokens.parse().ok()?);
    match name {
        "threshold-lru" => Some(CacheRule::Threshold(tokens)),
        "t-lru" => Some(CacheRule::TLruAt(tokens)),
        _ => None,
    }
}
