//! Listings of the whole cache: in the order of eviction, for a snapshot, and for checks. Not used on the request path.

use rustc_hash::FxHashMap;

use super::slab::{Band, NONE};
use super::{Entry, Lease, Piece, PrefixCache};
use crate::ids::PrefixHash;
use crate::units::Tokens;

impl PrefixCache {
    /// Returns whether the piece is resident and has no children.
    pub fn is_leaf(&self, hash: PrefixHash) -> bool {
        self.nodes.find(hash).is_some_and(|slot| self.nodes.is_leaf(slot))
    }

    pub(crate) fn leased(&self, lease: &Lease) -> impl DoubleEndedIterator<Item = Piece> {
        let held: &[u32] = if lease.epoch == self.epoch {
            &lease.held
        } else {
            &[]
        };
        held.iter().map(|&slot| {
            let node = self.nodes.get(slot);
            Piece {
                hash: node.hash,
                tokens: node.tokens,
            }
        })
    }

    /// Returns the tokens up to and including a piece, if it is resident.
    pub fn tokens_up_to(&self, hash: PrefixHash) -> Option<Tokens> {
        let mut at = self.nodes.find(hash)?;
        let mut tokens = 0;
        while at != NONE {
            let node = self.nodes.get(at);
            tokens += u64::from(node.tokens);
            at = node.parent;
        }
        Some(Tokens(tokens))
    }

    /// Returns the pieces in the order of eviction, assuming no further use. Pinned pieces are absent.
    #[cfg(test)]
    pub fn eviction_order(&self) -> Vec<PrefixHash> {
        let marked = self.nodes.in_band(Band::EvictFirst);
        marked
            .chain(self.nodes.last_to_go())
            .map(|slot| self.nodes.get(slot).hash)
            .collect()
    }

    /// Returns everything resident: marked pieces, then the others by least recent use whatever the
    /// [`Order`](super::Order), held pieces last. Each has the index of its parent, which always comes later.
    pub fn entries(&self) -> Vec<Entry> {
        let bands = [Band::EvictFirst, Band::Lru];
        let mut slots: Vec<u32> = bands.iter().flat_map(|&band| self.nodes.in_band(band)).collect();
        let depths = self.pinned_depths();
        let mut pinned: Vec<(usize, PrefixHash, u32)> = depths
            .iter()
            .map(|(&slot, &depth)| (usize::MAX - depth, self.nodes.get(slot).hash, slot))
            .collect();
        pinned.sort_unstable_by_key(|&(rank, hash, _)| (rank, hash.0));
        slots.extend(pinned.into_iter().map(|(.., slot)| slot));
        let places: FxHashMap<u32, u32> = slots.iter().copied().zip(0..).collect();
        let entry = |&slot: &u32| {
            let node = self.nodes.get(slot);
            let piece = Piece {
                hash: node.hash,
                tokens: node.tokens,
            };
            Entry {
                piece,
                parent: places.get(&node.parent).copied(),
            }
        };
        slots.iter().map(entry).collect()
    }

    /// Returns the depth of each pinned piece. Each is visited once, since a pinned piece's ancestors are pinned too.
    fn pinned_depths(&self) -> FxHashMap<u32, usize> {
        let mut depths: FxHashMap<u32, usize> = FxHashMap::default();
        let mut path = Vec::new();
        for slot in self.nodes.all().filter(|&slot| self.nodes.get(slot).pins > 0) {
            let mut at = slot;
            while at != NONE && !depths.contains_key(&at) {
                path.push(at);
                at = self.nodes.get(at).parent;
            }
            let mut depth = depths.get(&at).copied().unwrap_or(0);
            while let Some(slot) = path.pop() {
                depth += 1;
                depths.insert(slot, depth);
            }
        }
        depths
    }

    /// Checks the invariants between operations; `Err` names the one that is broken.
    pub fn invariants(&self) -> Result<(), String> {
        let (used, pinned) = self.nodes.invariants()?;
        if used != self.used || pinned != self.pinned {
            return Err(format!(
                "counted used {used} pinned {pinned}, kept {} {}",
                self.used, self.pinned
            ));
        }
        if self.used > self.capacity && self.used > self.pinned {
            return Err(format!(
                "{} tokens in room for {}, not all pinned",
                self.used, self.capacity
            ));
        }
        Ok(())
    }
}
