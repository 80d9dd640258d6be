//! The LRU family on shared blocks: the engines' own cache, with marks by the worth of each finished turn.

use crate::cache::CacheConfig;
use crate::cache::marked::Worth;
use policy::cache::{Change, Keep, Piece, PrefixCache};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// [`PrefixCache`] under optional or forced caching.
pub(super) struct MarkedBlocks {
    cache: PrefixCache,
    block: u32,
    forced: bool,
    /// Blocks of no worth, forced to stay until another turn is served.
    leaving: Vec<PrefixHash>,
    /// A buffer whose contents are not used.
    changes: Vec<Change>,
}

impl MarkedBlocks {
    pub(super) fn new(config: &CacheConfig) -> Self {
        Self {
            cache: PrefixCache::new(config.capacity),
            block: config.block_tokens.max(1),
            forced: config.forced,
            leaving: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Serves a turn and returns the tokens of its chain that were resident.
    pub(super) fn serve(&mut self, chain: &[PrefixHash], worth: Worth) -> Tokens {
        self.changes.clear();
        let cached = self.cache.resident_tokens(chain);
        let leaving = std::mem::take(&mut self.leaving);
        self.drop_unused(&leaving);
        let room = self.cache.capacity();
        if !self.forced {
            // Room for the turn beside everything else, so that it competes only when its worth is known.
            let whole = chain.len() as u64 * u64::from(self.block);
            let wider = Tokens(room.0.saturating_add(whole));
            self.cache.set_capacity(wider, &mut self.changes);
        }
        let keep = match worth {
            Worth::First(budget) => Keep::First(budget),
            Worth::All | Worth::Nothing => Keep::All,
        };
        let block = self.block;
        let pieces = chain.iter().map(|&hash| Piece { hash, tokens: block });
        self.cache
            .insert(&pieces.collect::<Vec<_>>(), keep, &mut self.changes);
        match worth {
            Worth::Nothing if self.forced => self.leaving = chain.to_vec(),
            Worth::Nothing => self.drop_unused(chain),
            Worth::All | Worth::First(_) => {}
        }
        self.cache.set_capacity(room, &mut self.changes);
        cached
    }

    /// Drops a chain from its end, up to blocks that others use; the chain's blocks from there on are marked
    /// evict-first.
    fn drop_unused(&mut self, chain: &[PrefixHash]) {
        let resident = self.cache.resident(chain);
        for &hash in chain[..resident].iter().rev() {
            if self.cache.is_leaf(hash) {
                self.cache.remove(hash, &mut self.changes);
            } else {
                self.cache.mark_evict_first([hash]);
            }
        }
    }
}
