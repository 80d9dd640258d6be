//! Cache policies: what a worker keeps of its conversations when not everything fits.
//!
//! # The setting
//! A conversation's turn arrives; the tokens of its history that are still resident need no prefill, the others do:
//! `TTFT = β + α·(history + prompt − resident)`. Once it is served the whole conversation, answer included, is
//! resident, and the policy takes tokens away until the cache fits. Residency is a prefix: tokens go from a
//! conversation's end. That is the model of *Tail-Optimized Caching for LLM Inference* (Zhang, Li, Moallemi, Peng;
//! NeurIPS 2025, arXiv 2510.15152), whose objective is `TEL = Σ max(TTFT − ξ_s, 0)`.
//!
//! With `ξ` the threshold in tokens, a next prompt of `Q` tokens after a history of `L` exceeds it by
//! `(L + Q − X − ξ)⁺`, so that tokens past `max(0, L + Q̂ − ξ)`, the *TEL-safe budget*, cannot help: they are *free*.
//!
//! # The policies
//! One trait, [`CachePolicy`]; one file per policy; [`PolicySpec`] names them.
//!
//! | policy | knows | cost of a turn |
//! |---|---|---|
//! | [`lru`] | – | O(1) amortised |
//! | [`threshold_lru`] | – | O(1) amortised |
//! | [`t_lru`] | mean next prompt | O(1) amortised |
//! | [`t_lru_printed`] | mean next prompt | O(log n) per token trimmed |
//! | [`t_lru_trim_all`] | mean next prompt | O(1) amortised |
//! | [`end_aware`] | whether this was the last turn | O(1) amortised |
//! | [`length_aware`] | that, and the next prompt's length | O(1) amortised |
//! | [`et_lru`] | learned prompt lengths, returns and gaps | O(log n) |
//! | [`workload_aware`] | learned returns and gaps per class | O(classes + log n) |
//! | [`gdfs`] | frequency, cost per token | O(log n) |
//! | [`flop_aware`] | FLOPs saved per byte | O(log n) |
//! | [`tiers`] | mean next prompt | O(log n) per tier |
//! | [`belady`], [`to_belady`] | the whole future | O(log n) |
//!
//! *Optional* caching, the default, lets a policy trim the conversation that was just served; *forced* caching keeps
//! it whole until another is served, unless it alone exceeds the cache.
//!
//! [`policy::cache`] is the other kind of cache: chained blocks that prompts share, as workers and mirrors hold them, for
//! the LRU family; [`blocks`] is the same for policies that rank what they hold.
//!
//! None of them scans its conversations on a turn's path, but for a `flop-aware` whose weight is tuned: once per tuning
//! window it copies and reorders what it holds, O(n), amortised over the window's turns ([`flop_aware`]). Every policy here is driven beside a naive twin that does
//! nothing else, by a property test.

pub mod belady;
pub mod blocks;
pub mod end_aware;
pub mod et_lru;
pub mod flop_aware;
pub mod gdfs;
pub mod length_aware;
mod lengths;
pub mod lru;
pub mod marked;
#[cfg(test)]
mod naive;
mod ranked;
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

use crate::trace::ClassId;
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

/// A cache under one policy, holding private conversations by their lengths.
pub trait CachePolicy {
    /// Tokens of the conversation that are resident: a prefix of it.
    fn resident(&self, conversation: ConversationId) -> Tokens;

    /// Tokens of a history that need no prefill now: what is resident of it, unless the policy knows better.
    fn cached(&self, conversation: ConversationId, history: Tokens) -> Tokens {
        Tokens(self.resident(conversation).0.min(history.0))
    }

    /// A turn was served: all of `turn.length` is resident now. Make room.
    fn served(&mut self, turn: &Served);

    /// Tokens resident in all.
    fn used(&self) -> Tokens;

    /// Time to bring the first `cached` resident tokens to where prefill can use them. Nothing but in a tier stack.
    fn load_time(&self, conversation: ConversationId, cached: Tokens) -> Millis {
        let _ = (conversation, cached);
        Millis::ZERO
    }

    /// Resident conversations and their tokens, in no particular order.
    fn dump(&self) -> Vec<(ConversationId, Tokens)>;

    /// What must hold between calls.
    ///
    /// # Errors
    /// The first invariant found broken, in words.
    fn check(&self) -> Result<(), String>;
}

/// What every policy is told about the cache that it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Tokens that fit.
    pub capacity: Tokens,
    /// Tokens per block: residency comes in whole blocks. 1 where lengths are exact.
    pub block_tokens: u32,
    /// ξ: uncached tokens that still meet the threshold. Not whole, since it comes from a time.
    pub xi_tokens: f64,
    /// Q̂: the expected next prompt.
    pub next_prompt: Tokens,
    /// Whether the conversation just served must stay whole.
    pub forced: bool,
}

impl CacheConfig {
    /// An LRU-like cache without a threshold: ξ = 0, Q̂ = 0, token by token, optional caching.
    #[must_use]
    pub fn new(capacity: Tokens) -> Self {
        Self {
            capacity,
            block_tokens: 1,
            xi_tokens: 0.0,
            next_prompt: Tokens::ZERO,
            forced: false,
        }
    }

    /// The TEL-safe budget after a turn, `max(0, L + next − ξ)` rounded up to blocks.
    #[must_use]
    pub fn budget(&self, length: Tokens, next: Tokens) -> u64 {
        // ⌈n − ξ⌉ = n − ⌊ξ⌋ for whole n; the cast is the floor, and saturates.
        let exact = length
            .0
            .saturating_add(next.0)
            .saturating_sub(self.xi_tokens as u64);
        round_up(exact, u64::from(self.block_tokens.max(1)))
    }
}

/// A turn that was just served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Whose.
    pub conversation: ConversationId,
    /// Its number within the conversation.
    pub turn: u32,
    /// Traffic class.
    pub class: ClassId,
    /// When it arrived. Never before the last one's.
    pub at: Millis,
    /// Tokens that it added to the history.
    pub prompt: Tokens,
    /// L: the conversation's tokens after it, answer included.
    pub length: Tokens,
    /// What comes next, for the policies that are told.
    pub future: Future,
}

/// What an oracle knows about a conversation's next turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Future {
    /// Nobody asked.
    #[default]
    Unknown,
    /// There is none.
    Last,
    /// There is one.
    Next {
        /// Its place in the order of all turns: greater than this turn's, and nobody else's.
        position: u64,
        /// Tokens that its prompt adds.
        prompt: Tokens,
    },
}

/// `tokens` in whole blocks, rounded up. Without a division where lengths are exact: it would be felt on every turn.
fn round_up(tokens: u64, block: u64) -> u64 {
    if block == 1 {
        tokens
    } else {
        tokens.div_ceil(block).saturating_mul(block)
    }
}
