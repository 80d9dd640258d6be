//! Caches that rank their blocks by something other than recency, under rules that the caller brings.

use std::fmt;

use policy::cache::Change;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

use super::FleetConfig;
use super::workload::Workload;
use crate::served::Served;

/// A rule that ranks a worker's blocks; the least is evicted first.
#[derive(Clone, Copy, Debug)]
pub struct RankedRule {
    /// Unique name.
    pub name: &'static str,
    /// Creates the empty caches of the fleet's workers, in their order.
    pub caches: fn(&Workload, &FleetConfig) -> Vec<Box<dyn RankedCache>>,
}

impl PartialEq for RankedRule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for RankedRule {}

impl fmt::Display for RankedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A running sequence's hold on its blocks. Dropping it without [`RankedCache::release`] leaves them held.
#[derive(Debug)]
#[must_use = "a dropped lease leaves its blocks held"]
pub struct BlockLease {
    /// The cache's own numbers of the blocks held, from the start of the prompt.
    pub held: Vec<u32>,
    /// Leading tokens that were resident when the sequence began.
    pub hit_tokens: Tokens,
    /// Whether there was no room for all of the sequence.
    pub is_cut: bool,
    /// The number of times that the cache had been cleared.
    pub epoch: u64,
}

/// A cache of blocks that sequences hold while they run.
pub trait RankedCache: fmt::Debug {
    /// Begins a sequence: holds its resident prefix, and stores the rest as far as there is room.
    fn acquire(&mut self, now: Millis, chain: &[PrefixHash], changes: &mut Vec<Change>) -> BlockLease;

    /// Adds the blocks by which a sequence grew.
    fn extend(&mut self, lease: &mut BlockLease, grown: &[PrefixHash], changes: &mut Vec<Change>);

    /// Ends a sequence: its blocks get the value of this turn.
    fn release(&mut self, lease: BlockLease, turn: &Served);

    /// Records that the turn at this position of the trace can no longer use resident blocks. Only rules with hindsight
    /// use this.
    fn passed(&mut self, turn: u32);

    /// Removes every block, including held ones. Learned state is kept.
    fn clear(&mut self, changes: &mut Vec<Change>);

    /// Returns whether this block, and with it every block before it, is resident.
    fn contains(&self, hash: PrefixHash) -> bool;

    /// Returns the resident tokens.
    fn tokens(&self) -> Tokens;
}
