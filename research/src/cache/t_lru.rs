//! Tail-Optimized LRU: free tokens first, then LRU.
//!
//! After a turn of a conversation of `L` tokens, resident tokens past `max(0, L + Q̂ − ξ)` are not needed for a next
//! prompt of `Q̂` tokens to start within ξ. When the cache overflows, those *free* tokens are trimmed, oldest
//! conversation first, until it fits. Only then does LRU evict, from the end of the oldest conversation.
//!
//! # Where this differs from the paper's Algorithm 1
//! As printed, one pass takes one unit from every conversation with `X ≥ L + Q̂ − ξ`. Both details contradict the text
//! and Theorem 1, as checked by exact dynamic programmes:
//! - *one unit per pass*: with tokens as units the pass frees almost nothing: 0.2 % of TEL is gained, here 43 %;
//! - *≥*: at equality the token is worth exactly what any other is. With `≥`, T-LRU loses to LRU and differs from it at
//!   ξ = 0; with `>` the two are the same there.
//!
//! [`super::t_lru_printed`] keeps the printed form, [`super::t_lru_trim_all`] the reading that trims all free tokens.
//! T-LRU trades mean for tail: a trimmed token is prefill work when its conversation returns, which on a queueing
//! server makes other turns wait. `docs/cache-policies.md` shows where that outweighs the gain.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};
use policy::units::Tokens;

/// Tail-Optimized LRU.
pub type TLru = Marked<TelSafe>;

/// The rule that keeps the tokens within the TEL-safe budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct TelSafe;

impl Rule for TelSafe {
    const TRIM: Trim = Trim::Needed;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        Worth::First(Tokens(config.budget(turn.length, config.next_prompt)))
    }
}
