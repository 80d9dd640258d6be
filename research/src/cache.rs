//! Cache policies: the choice of the tokens that a worker keeps when not all conversations fit.
//!
//! The model is that of *Tail-Optimized Caching for LLM Inference* (Zhang, Li, Moallemi, Peng; NeurIPS 2025, arXiv
//! 2510.15152): a served conversation is resident, response included, and a policy removes tokens from the ends of
//! conversations until the cache fits. The objective is `TEL = Σ max(TTFT − ξ_s, 0)`. With `ξ` the threshold in tokens,
//! a next prompt of `Q` tokens after a history of `L`, of which `X` are resident, exceeds it by `(L + Q − X − ξ)⁺`. So
//! tokens past `max(0, L + Q̂ − ξ)`, the *TEL-safe budget*, cannot help: they are *free*.
//!
//! One trait, [`CachePolicy`]; one file per policy; [`PolicySpec`] names them, and `docs/cache-policies.md` says what
//! each knows and costs. *Optional* caching, the default, lets a policy trim the conversation that was just served;
//! *forced* caching keeps it whole until another is served, unless it alone exceeds the cache.
//!
//! [`policy::cache`] is the other kind of cache: chained blocks that prompts share, as workers and mirrors hold them,
//! for the LRU family. [`blocks`] is the same for policies that rank their contents. No policy scans its conversations
//! on a turn's path, except [`flop_aware`] with a tuned weight. Property tests compare each with a naive twin.

pub mod belady;
pub mod blocks;
pub mod end_aware;
pub mod et_lru;
pub mod flop_aware;
pub mod gdfs;
#[cfg(test)]
mod golden;
pub mod length_aware;
mod lengths;
pub mod lru;
pub mod marked;
#[cfg(test)]
mod naive;
mod ranked;
pub mod ranked_rules;
mod recency;
mod returns;
mod spec;
pub mod survival;
pub mod t_lru;
pub mod t_lru_printed;
pub mod t_lru_trim_all;
#[cfg(test)]
mod tests;
pub mod threshold_lru;
pub mod tiers;
pub mod to_belady;
pub mod workload_aware;

pub use spec::{PolicySpec, UnknownPolicy};

pub use simulator::served::{Future, Served};

use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

/// A cache under one policy, holding private conversations by their lengths.
pub trait CachePolicy {
    /// Returns the resident tokens of the conversation, a prefix of it.
    fn resident(&self, conversation: ConversationId) -> Tokens;

    /// Returns the tokens of a history that need no prefill now: by default the resident ones.
    fn cached(&self, conversation: ConversationId, history: Tokens) -> Tokens {
        Tokens(self.resident(conversation).0.min(history.0))
    }

    /// Records a served turn, all of whose `turn.length` tokens are now resident, and makes room.
    fn served(&mut self, turn: &Served);

    /// Returns all resident tokens.
    fn used(&self) -> Tokens;

    /// Returns the time to load the first `cached` resident tokens to where prefill can use them: zero without tiers.
    fn load_time(&self, conversation: ConversationId, cached: Tokens) -> Millis {
        let _ = (conversation, cached);
        Millis::ZERO
    }

    /// Returns the resident conversations and their tokens, in no particular order.
    fn dump(&self) -> Vec<(ConversationId, Tokens)>;

    /// Checks the invariants between calls. Fails with the first broken one.
    fn check(&self) -> Result<(), String>;
}

/// Implements the methods of [`CachePolicy`] that a field can answer.
macro_rules! residency_of {
    ($($field:ident).+) => {
        fn resident(&self, conversation: ConversationId) -> Tokens {
            self.$($field).+.resident(conversation)
        }

        fn used(&self) -> Tokens {
            self.$($field).+.used()
        }

        fn dump(&self) -> Vec<(ConversationId, Tokens)> {
            self.$($field).+.dump()
        }
    };
}

pub(crate) use residency_of;

/// Parameters common to all cache policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Capacity in tokens.
    pub capacity: Tokens,
    /// Tokens per block, since only whole blocks are resident; 1 where lengths are exact.
    pub block_tokens: u32,
    /// ξ: uncached tokens that still meet the threshold. Not an integer, since ξ is derived from a time.
    pub xi_tokens: f64,
    /// Q̂: the expected next prompt.
    pub next_prompt: Tokens,
    /// Whether the conversation just served must stay whole.
    pub forced: bool,
}

impl CacheConfig {
    /// Creates the parameters of a cache without a threshold: ξ = 0, Q̂ = 0, blocks of one token, optional caching.
    pub fn new(capacity: Tokens) -> Self {
        Self {
            capacity,
            block_tokens: 1,
            xi_tokens: 0.0,
            next_prompt: Tokens::ZERO,
            forced: false,
        }
    }

    /// Returns the TEL-safe budget after a turn, `max(0, L + next − ξ)`, rounded up to blocks.
    pub fn budget(&self, length: Tokens, next: Tokens) -> u64 {
        // ⌈n − ξ⌉ = n − ⌊ξ⌋ for whole n; the cast is the floor, and saturates.
        let exact = length
            .0
            .saturating_add(next.0)
            .saturating_sub(self.xi_tokens as u64);
        round_up(exact, self.block())
    }

    /// Returns the tokens per block, at least 1.
    pub fn block(&self) -> u64 {
        u64::from(self.block_tokens.max(1))
    }
}

/// Rounds `tokens` up to whole blocks. Avoids a division where lengths are exact, since every turn calls this.
fn round_up(tokens: u64, block: u64) -> u64 {
    if block == 1 {
        tokens
    } else {
        tokens.div_ceil(block).saturating_mul(block)
    }
}
