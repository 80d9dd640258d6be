//! A trace prepared for playing: every turn's blocks, those that its response fills, and its predecessor.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::served::{Future, Served};
use crate::trace::{ClassId, Turn};
use policy::fingerprint::Chain;
use policy::ids::{ConversationId, PrefixHash};
use policy::units::{Millis, Tokens};

/// The reason why a trace cannot be played.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WorkloadError {
    /// The trace has no turns.
    #[error("the trace has no turns")]
    Empty,
    /// The trace has more turns than an index can address.
    #[error("more than {} turns", u32::MAX)]
    TooLong,
    /// The block size is zero.
    #[error("a block must hold at least one token")]
    BlockSize,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) ts_s: f64,
    pub(super) conversation: ConversationId,
    pub(super) number: u32,
    traffic: ClassId,
    pub(super) prompt: Tokens,
    pub(super) new_tokens: Tokens,
    pub(super) response: Tokens,
    pub(super) objective: Option<Millis>,
    pub(super) class: Arc<str>,
    pub(super) chain: Chain,
    pub(super) reply: Chain,
    pub(super) next: Option<u32>,
    pub(super) is_first: bool,
}

impl Item {
    pub(super) fn served(&self, at: Millis) -> Served {
        Served {
            conversation: self.conversation,
            turn: self.number,
            class: self.traffic,
            at,
            prompt: self.new_tokens,
            length: self.prompt + self.response,
            future: Future::Unknown,
        }
    }
}

/// A trace, prepared for any number of runs.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(super) items: Vec<Item>,
    pub(super) block_tokens: u32,
    pub(super) span_s: f64,
}

/// Applies SplitMix64's finaliser, in which every bit of the input affects every bit of the output. Names blocks
/// without a name in the trace, and spreads the names of others.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn private(conversation: ConversationId, position: u64) -> PrefixHash {
    PrefixHash(mix(mix(conversation.0 ^ 0x5bd1_e995_0000_0000) ^ position))
}

/// A turn's prompt.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Tokens of the prompt, of which the last few may fill no block.
    pub tokens: Tokens,
    /// Time to first token that it should meet; `None` for the fleet's.
    pub objective: Option<Millis>,
    /// Full blocks of the prompt.
    pub blocks: &'a [PrefixHash],
}

impl Workload {
    /// Prepares turns in order of time, with the trace's own blocks of `block_tokens` tokens, or private ones without.
    /// Fails for an empty or too long trace, or blocks of no tokens.
    pub fn new(turns: &[Turn], block_tokens: u32) -> Result<Self, WorkloadError> {
        if block_tokens == 0 {
            return Err(WorkloadError::BlockSize);
        }
        let (Some(first), Some(last)) = (turns.first(), turns.last()) else {
            return Err(WorkloadError::Empty);
        };
        if u32::try_from(turns.len()).is_err() {
            return Err(WorkloadError::TooLong);
        }
        let mut next: Vec<Option<u32>> = vec![None; turns.len()];
        let mut numbers = vec![1; turns.len()];
        let mut latest: FxHashMap<ConversationId, usize> = FxHashMap::default();
        for (at, turn) in turns.iter().enumerate() {
            if let Some(before) = latest.insert(turn.conversation, at) {
                next[before] = Some(at as u32);
                numbers[at] = numbers[before] + 1;
            }
        }
        let no_class: Arc<str> = Arc::from("");
        let items = turns
            .iter()
            .zip(next)
            .zip(numbers)
            .map(|((turn, next), number)| {
                let successor = next.map(|next| &turns[next as usize]);
                Item {
                    ts_s: turn.ts_s,
                    conversation: turn.conversation,
                    number,
                    traffic: turn.class,
                    prompt: turn.input_tokens(),
                    new_tokens: turn.prompt_tokens,
                    response: turn.response_tokens,
                    objective: None,
                    class: Arc::clone(&no_class),
                    chain: prompt_chain(turn, block_tokens),
                    reply: reply_chain(turn, successor, block_tokens),
                    next,
                    is_first: number == 1,
                }
            })
            .collect();
        Ok(Self {
            items,
            block_tokens,
            span_s: (last.ts_s - first.ts_s).max(1e-3),
        })
    }

    /// Sets the objectives of some turns, used for the choice and for hints.
    #[must_use]
    pub fn with_objectives(mut self, of: impl Fn(usize) -> Option<Millis>) -> Self {
        for (at, item) in self.items.iter_mut().enumerate() {
            item.objective = of(at);
        }
        self
    }

    /// Sets the classes of some turns, as in [`Settings::classes`](policy::route::Settings::classes).
    #[must_use]
    pub fn with_classes(mut self, of: impl Fn(usize) -> Option<Arc<str>>) -> Self {
        for (at, item) in self.items.iter_mut().enumerate() {
            item.class = of(at).unwrap_or_else(|| Arc::clone(&item.class));
        }
        self
    }

    /// Returns the number of turns.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns `false`: a workload has turns.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the trace's prefill in ms without caching, at `alpha` ms per token and `beta` ms per turn.
    /// Returns the tokens per block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Returns the prompts of all turns, in the trace's order.
    pub fn prompts(&self) -> impl Iterator<Item = Prompt<'_>> + Clone {
        self.items.iter().map(|item| Prompt {
            tokens: item.prompt,
            objective: item.objective,
            blocks: item.chain.hashes(),
        })
    }

    pub(super) fn work_ms(&self, alpha: f64, beta: f64) -> f64 {
        let tokens: f64 = self.items.iter().map(|item| item.prompt.as_f64()).sum();
        alpha * tokens + beta * self.items.len() as f64
    }
}

fn named(turn: &Turn, position: u64) -> PrefixHash {
    let id = turn.blocks.as_ref().and_then(|ids| ids.get(position as usize));
    id.map_or_else(|| private(turn.conversation, position), |id| PrefixHash(mix(*id)))
}

fn prompt_chain(turn: &Turn, block_tokens: u32) -> Chain {
    let full = turn.input_tokens().full_blocks(block_tokens);
    Chain::of_blocks((0..full).map(|at| named(turn, at)).collect(), 0, block_tokens)
}

/// Returns the blocks filled by prompt and response together: named as far as the next turn repeats them, else private.
fn reply_chain(turn: &Turn, successor: Option<&Turn>, block_tokens: u32) -> Chain {
    let prompt = turn.input_tokens().full_blocks(block_tokens);
    let total = turn.total_tokens().full_blocks(block_tokens);
    let repeated = successor.map_or(0, |next| next.history_tokens.full_blocks(block_tokens));
    let name = |at: u64| match successor {
        Some(next) if at < repeated => named(next, at),
        // Private to this turn, not to the conversation: the next turn diverged.
        _ if turn.blocks.is_some() => PrefixHash(mix(
            private(turn.conversation, at).0 ^ mix(u64::from(turn.turn) + 1)
        )),
        _ => private(turn.conversation, at),
    };
    let hashes = (prompt..total).map(name).collect();
    Chain::of_blocks(hashes, prompt * u64::from(block_tokens), block_tokens)
}
