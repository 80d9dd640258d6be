//! What a worker says of its own cache: which blocks it stored and removed, and what that means for a prompt.
//!
//! The mirror is a guess, however good; a worker that publishes its cache's events can be known exactly. Two things
//! stand between the events and the answer:
//!
//! - *The stream loses messages* (publisher and subscriber both drop when they fall behind). Each batch has a number, so
//!   a gap shows; [`Sequence`] says when to ask for a replay, when the publisher is a new process, and when nothing that
//!   was known can be believed any more.
//! - *Blocks are named by a hash of token ids*, which a router without a tokenizer cannot compute. But the router names
//!   the conversation of each request, and the event that stores a block names it again. So when a turn is over, the
//!   newest block that was stored for its conversation ends the chain of blocks of exactly that prompt and reply, whose
//!   text keys the router does know. [`WorkerEvidence`] binds the two: each text key to the blocks that its text fills.
//!   Another conversation that shares the text shares the keys, and so finds the same blocks.
//!
//! Events that name no conversation are bound by the shape of the turn that they belong to, where only one has it; see
//! `worker/unnamed`.
//!
//! A model whose layers differ keeps a cache per *group* of layers and tells of each. One group is followed: the first
//! whose layers attend to the whole prompt, since a prompt is served no further than such a group holds it. Groups with a
//! window or a state may shorten a hit; what the events say is then the most that can be found, and reports correct it.
//! A model without a group that attends to the whole prompt is not followed at all, and its mirror speaks.
//!
//! A block counts in whatever *tier* it is (GPU, host, disk, a store outside): it need not be computed again. It has left
//! when it has left the last.
//!
//! Rejected: *asking the engine to tokenise each prompt* (a round trip before every decision), and *shipping a tokenizer
//! per model* (a second source of truth, with templates that drift from the engine's).

mod blocks;
mod sequence;
mod worker;

pub use blocks::Blocks;
pub use sequence::{Sequence, Verdict};
pub use worker::{Bindings, Resident, TurnBlocks, WorkerEvidence};

/// One event of a worker's cache, in the router's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks came into a tier, each one following the one before.
    Stored(Stored),
    /// Blocks that are known already came into a further tier.
    Copied {
        /// Their hashes, in no order.
        hashes: Vec<u64>,
        /// The tier.
        medium: Medium,
        /// The group of layers that they belong to.
        group: u32,
    },
    /// Blocks left a tier.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
        /// The tier that they left.
        medium: Medium,
        /// The group of layers that they belong to.
        group: u32,
    },
    /// Everything left at once.
    Cleared,
}

impl Event {
    /// The hashes that it names.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        match self {
            Self::Stored(stored) => &stored.hashes,
            Self::Copied { hashes, .. } | Self::Removed { hashes, .. } => hashes,
            Self::Cleared => &[],
        }
    }
}

/// Blocks that were stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Their hashes, in the order of the prompt.
    pub hashes: Vec<u64>,
    /// The block before the first; `None` where a prompt begins.
    pub parent: Option<u64>,
    /// Tokens per block.
    pub block_size: u32,
    /// The tier.
    pub medium: Medium,
    /// XXH3 of the conversation's name, where the event names it.
    pub session: Option<u64>,
    /// The group of layers that they belong to.
    pub group: u32,
    /// Whether these layers attend to part of the prompt only (a sliding window, a state): their blocks come and go
    /// without saying whether the prompt's beginning is there.
    pub partial: bool,
}

/// A tier of a worker's cache. What is in any of them need not be computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The accelerator's memory; also what events that name no medium mean.
    #[default]
    Gpu,
    /// The host's memory.
    Host,
    /// A disk.
    Disk,
    /// A store outside the worker.
    External,
}

impl Medium {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}
