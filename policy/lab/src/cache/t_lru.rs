//! Tail-Optimized LRU: free tokens first, then LRU.
//!
//! After a turn of a conversation of `L` tokens, what is resident past `max(0, L + Q̂ − ξ)` cannot help a next prompt of
//! `Q̂` tokens to start within ξ: it would anyway. When the cache overflows, those *free* tokens are trimmed, oldest
//! conversation first, stopping as soon as it fits; only then LRU begins, from the end of the oldest conversation.
//!
//! # Where this differs from the paper's Algorithm 1
//! As printed, one pass takes one unit from every conversation with `X ≥ L + Q̂ − ξ`. Both details are misreadings of the
//! text and of Theorem 1, settled by exact dynamic programmes:
//! - *one unit per pass*: with tokens as units the pass frees next to nothing, and the printed form gains 0.2 % of TEL
//!   where this one gains 43 %;
//! - *≥*: at equality the token is worth exactly what any other is. With `≥`, T-LRU loses to LRU and differs from it at
//!   ξ = 0; with `>` the two are the same there.
//!
//! [`super::t_lru_printed`] keeps the printed form for comparison, and [`super::t_lru_trim_all`] the reading that trims
//! every free token on overflow, which throws away more than is needed.
//!
//! # What it costs
//! It trades mean for tail: a trimmed token is prefill work when its conversation returns. On a queueing server that
//! work is somebody's wait; see `docs/cache-policies.md` for where that turns against it.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};
use policy::units::Tokens;

/// Tail-Optimized LRU.
pub type TLru = Marked<TelSafe>;

/// What lies within the TEL-safe budget is worth keeping.
#[derive(Clone, Copy, Debug, Default)]
pub struct TelSafe;

impl Rule for TelSafe {
    const TRIM: Trim = Trim::Needed;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        Worth::First(Tokens(config.budget(turn.length, config.next_prompt)))
    }
}
