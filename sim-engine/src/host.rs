//! A host-memory tier: evicted blocks move to host memory and are loaded from there instead of computed. They leave it
//! in FIFO order. A block that is stored in the cache again keeps its copy here, as in engines that write back once.

use std::collections::VecDeque;

use policy::ids::PrefixHash;
use rustc_hash::FxHashSet;

#[derive(Debug)]
pub(crate) struct Host {
    blocks: usize,
    order: VecDeque<PrefixHash>,
    held: FxHashSet<PrefixHash>,
}

impl Host {
    pub(crate) fn new(blocks: u64) -> Self {
        Self {
            blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
            order: VecDeque::new(),
            held: FxHashSet::default(),
        }
    }

    pub(crate) fn store(&mut self, block: PrefixHash) {
        if self.blocks == 0 || !self.held.insert(block) {
            return;
        }
        self.order.push_back(block);
        if self.order.len() > self.blocks
            && let Some(first) = self.order.pop_front()
        {
            self.held.remove(&first);
        }
    }

    pub(crate) fn leading(&self, chain: &[PrefixHash]) -> usize {
        chain.iter().take_while(|block| self.held.contains(block)).count()
    }

    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_in_fifo_order_and_only_leading_blocks_count() {
        let mut host = Host::new(2);
        [1, 2, 2, 3]
            .map(PrefixHash)
            .into_iter()
            .for_each(|block| host.store(block));
        assert_eq!(host.leading(&[2, 3, 4].map(PrefixHash)), 2);
        assert_eq!(host.leading(&[1, 2].map(PrefixHash)), 0, "1 had to go");
        host.clear();
        assert_eq!(host.leading(&[PrefixHash(2)]), 0);
        let mut none = Host::new(0);
        none.store(PrefixHash(1));
        assert_eq!(none.leading(&[PrefixHash(1)]), 0);
    }
}
