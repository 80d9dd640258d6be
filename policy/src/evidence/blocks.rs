//! The blocks that a worker holds, from its events: a forest of hashes.
//!
//! Engines evict from a prompt's end, so nearly always all ancestors of a resident block are resident too. Absent
//! blocks with resident children are counted in `missing`; only while there are any does a lookup walk up to the root.

use rustc_hash::FxHashMap;

use super::Medium;

/// Upper bound on the blocks of one worker, more than any cache holds, in case an engine never reports removals.
const MAX_BLOCKS: usize = 1 << 21;

#[derive(Clone, Copy, Debug)]
struct Block {
    parent: Option<u64>,
    depth: u32,
    /// Bitset of the tiers that hold the block.
    media: u8,
    children: u32,
    /// Number of the store event that added the block. 64 bits, since engines run for weeks.
    at: u64,
}

/// The blocks that a worker holds.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    held: FxHashMap<u64, Block>,
    /// Absent blocks that are the parent of resident ones, each with the number of these children.
    missing: FxHashMap<u64, u32>,
}

impl Blocks {
    /// Returns the number of blocks held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Records blocks stored in a tier by store event `at`, each following the one before. Returns the last one's hash
    /// and depth (1 for a prompt's first block). `None` if the parent is unknown, or if the bound is reached.
    pub fn store(
        &mut self,
        parent: Option<u64>,
        hashes: &[u64],
        medium: Medium,
        at: u64,
    ) -> Option<(u64, u32)> {
        let mut before = match parent {
            None => 0,
            Some(hash) => self.held.get(&hash)?.depth,
        };
        let mut parent = parent;
        for &hash in hashes {
            before = before.checked_add(1)?;
            if let Some(block) = self.held.get_mut(&hash) {
                block.media |= medium.bit();
            } else {
                if self.held.len() >= MAX_BLOCKS || parent == Some(hash) {
                    return None;
                }
                let block = Block {
                    parent,
                    depth: before,
                    media: medium.bit(),
                    children: self.missing.remove(&hash).unwrap_or(0),
                    at,
                };
                self.held.insert(hash, block);
                if let Some(above) = parent {
                    match self.held.get_mut(&above) {
                        Some(above) => above.children += 1,
                        None => *self.missing.entry(above).or_default() += 1,
                    }
                }
            }
            parent = Some(hash);
        }
        parent.map(|last| (last, before))
    }

    /// Records that held blocks were copied to a further tier. Unknown blocks, whose position is unknown, are ignored.
    pub fn copied(&mut self, hashes: &[u64], medium: Medium) {
        for hash in hashes {
            if let Some(block) = self.held.get_mut(hash) {
                block.media |= medium.bit();
            }
        }
    }

    /// Returns the number of blocks up to and including this one, if it is held.
    pub fn depth(&self, hash: u64) -> Option<u32> {
        self.held.get(&hash).map(|block| block.depth)
    }

    /// Returns the number of the store event that added a block, if the block is held.
    pub fn stored_at(&self, hash: u64) -> Option<u64> {
        self.held.get(&hash).map(|block| block.at)
    }

    /// Removes a block from a tier. Returns whether that was its last tier.
    pub fn remove(&mut self, hash: u64, medium: Medium) -> bool {
        let Some(block) = self.held.get_mut(&hash) else {
            return false;
        };
        block.media &= !medium.bit();
        if block.media != 0 {
            return false;
        }
        let Block { parent, children, .. } = *block;
        self.held.remove(&hash);
        if children > 0 {
            self.missing.insert(hash, children);
        }
        if let Some(above) = parent {
            if let Some(block) = self.held.get_mut(&above) {
                block.children = block.children.saturating_sub(1);
            } else if let Some(waiting) = self.missing.get_mut(&above) {
                *waiting -= 1;
                if *waiting == 0 {
                    self.missing.remove(&above);
                }
            }
        }
        true
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        // Keeps the memory, since lookups wait for the lock held here.
        self.held.clear();
        self.missing.clear();
    }

    /// Returns whether a prompt can use this block: it and all blocks before it are held.
    pub fn serves(&self, hash: u64) -> bool {
        let Some(mut block) = self.held.get(&hash) else {
            return false;
        };
        if self.missing.is_empty() {
            return true;
        }
        while let Some(parent) = block.parent {
            match self.held.get(&parent) {
                // Depths must decrease on the way up, so that malformed events cannot form a cycle.
                Some(above) if above.depth < block.depth => block = above,
                _ => return false,
            }
        }
        true
    }

    /// Returns the blocks from a prompt's beginning to this one; `None` if any of them is missing.
    pub fn path(&self, last: u64) -> Option<Vec<u64>> {
        let mut at = self.held.get(&last)?;
        // An event that repeats hashes may overstate a block's depth, so the capacity is bounded.
        let mut path = Vec::with_capacity((at.depth as usize).min(self.held.len()));
        path.push(last);
        while let Some(parent) = at.parent {
            path.push(parent);
            let above = self.held.get(&parent).filter(|above| above.depth < at.depth)?;
            at = above;
        }
        path.reverse();
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: where each block is, with every answer computed from the root.
    #[derive(Default)]
    struct Naive(BTreeMap<u64, (Option<u64>, u8)>);

    impl Naive {
        fn serves(&self, hash: u64) -> bool {
            match self.0.get(&hash) {
                None => false,
                Some((None, _)) => true,
                Some((Some(parent), _)) => self.serves(*parent),
            }
        }
    }

    /// Names a block by its position; all branches share the first half.
    fn name(branch: u64, depth: u64) -> u64 {
        if depth <= 3 { depth } else { branch * 100 + depth }
    }

    #[test]
    fn a_block_knows_its_event_however_many_there_were() {
        let mut blocks = Blocks::default();
        for at in [7, u64::from(u32::MAX), u64::from(u32::MAX) + 7] {
            assert_eq!(blocks.store(None, &[at], Medium::Gpu, at), Some((at, 1)));
        }
        assert_eq!(
            blocks.stored_at(u64::from(u32::MAX) + 7),
            Some(u64::from(u32::MAX) + 7)
        );
        assert_eq!(blocks.stored_at(7), Some(7));
    }

    #[test]
    fn an_event_that_repeats_hashes_reserves_no_more_than_there_is() {
        let mut blocks = Blocks::default();
        let mut hashes = [1, 2].repeat(1 << 16);
        hashes.push(3);
        assert_eq!(
            blocks.store(None, &hashes, Medium::Gpu, 1),
            Some((3, (1 << 17) + 1))
        );
        let path = blocks.path(3).unwrap();
        assert_eq!(path, [1, 2, 3]);
        assert!(path.capacity() < 16, "{}", path.capacity());
    }

    proptest! {
        #[test]
        fn it_answers_as_the_naive_twin_does(
            steps in prop::collection::vec((0..4_u64, 1..8_u64, 1..8_u64, 0..5_u8, any::<bool>()), 1..80),
        ) {
            let (mut blocks, mut naive) = (Blocks::default(), Naive::default());
            for (branch, from, count, what, host) in steps {
                let medium = if host { Medium::Host } else { Medium::Gpu };
                if what < 3 {
                    let parent = (from > 1).then(|| name(branch, from - 1));
                    let hashes: Vec<u64> = (from..from + count).map(|depth| name(branch, depth)).collect();
                    if parent.is_none_or(|parent| naive.0.contains_key(&parent)) {
                        let mut above = parent;
                        for &hash in &hashes {
                            naive.0.entry(hash).or_insert((above, 0)).1 |= medium.bit();
                            above = Some(hash);
                        }
                        prop_assert_eq!(
                            blocks.store(parent, &hashes, medium, 0),
                            Some((name(branch, from + count - 1), (from + count - 1) as u32))
                        );
                    } else {
                        prop_assert_eq!(blocks.store(parent, &hashes, medium, 0), None);
                    }
                } else {
                    let hash = name(branch, from);
                    let gone = naive.0.get_mut(&hash).is_some_and(|block| {
                        block.1 &= !medium.bit();
                        block.1 == 0
                    });
                    if gone {
                        naive.0.remove(&hash);
                    }
                    prop_assert_eq!(blocks.remove(hash, medium), gone);
                }
                prop_assert_eq!(blocks.len(), naive.0.len());
                for &hash in naive.0.keys() {
                    prop_assert_eq!(blocks.serves(hash), naive.serves(hash), "{}", hash);
                    prop_assert_eq!(blocks.path(hash).is_some(), naive.serves(hash));
                }
            }
        }
    }
}
