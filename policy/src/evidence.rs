//! A worker's cache events: which blocks it stored and removed, and which part of a prompt they hold.
//!
//! The mirror is an estimate; a worker that publishes its cache events can be known exactly (`docs/evidence.md`).
//!
//! - *The stream loses messages* (publisher and subscriber both drop when they fall behind). Each batch has a number,
//!   so a gap shows. [`Sequence`] tells when to ask for a replay and when all state must be dropped.
//! - *Blocks are named by a hash of token ids*, which a router without a tokenizer cannot compute. But the router names
//!   the conversation of each request, and the event that stores a block names it again. So once a turn is over, the
//!   newest block stored for its conversation ends the chain of its blocks, and the router knows its text keys.
//!   [`WorkerEvidence`] binds each text key to the blocks that its text fills. Events without a conversation are bound
//!   by the shape of their turn, where only one turn has it (`worker/unnamed`).
//!
//! One *group* of layers is followed: the first that attends to the whole prompt, since a hit never extends past what
//! it holds. A block counts in any *tier* and is gone when it has left the last.
//!
//! Rejected: *asking the engine to tokenise each prompt* (a round trip before every decision), and *shipping a
//! tokenizer per model* (a second source of truth, with templates that drift from the engine's).

mod blocks;
mod sequence;
mod worker;

pub use blocks::Blocks;
pub use sequence::{Sequence, Verdict};
pub use worker::{Bindings, Resident, TurnBlocks, WorkerEvidence};

/// One cache event of a worker, independent of the engine's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks were stored in a tier, each following the one before.
    Stored(Stored),
    /// Known blocks were copied to a further tier.
    Copied {
        /// The block hashes, in no order.
        hashes: Vec<u64>,
        /// The tier to which they were copied.
        medium: Medium,
        /// The group of layers.
        group: u32,
    },
    /// Blocks left a tier.
    Removed {
        /// The block hashes.
        hashes: Vec<u64>,
        /// The tier that they left.
        medium: Medium,
        /// The group of layers.
        group: u32,
    },
    /// All blocks were removed.
    Cleared,
}

impl Event {
    /// Returns the block hashes of the event.
    pub fn hashes(&self) -> &[u64] {
        match self {
            Self::Stored(stored) => &stored.hashes,
            Self::Copied { hashes, .. } | Self::Removed { hashes, .. } => hashes,
            Self::Cleared => &[],
        }
    }
}

/// A store event's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The block hashes, in the order of the prompt.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first; `None` at a prompt's beginning.
    pub parent: Option<u64>,
    /// Tokens per block.
    pub block_size: u32,
    /// The tier that stores them.
    pub medium: Medium,
    /// XXH3 of the conversation's name, if the event has one.
    pub session: Option<u64>,
    /// The group of layers.
    pub group: u32,
    /// Whether the group's layers attend to part of the prompt only (a window, a state), so not always to its
    /// beginning.
    pub partial: bool,
}

/// A tier of a worker's cache. Blocks in any tier need not be computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The accelerator's memory; the default for events without a medium.
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
