//! The byte budget: what counts, and what goes when it is used up.

use super::trim::Removal;
use super::{PIECE, Writer};

impl Writer {
    /// Every byte the index has from the allocator.
    pub(super) fn bytes(&self) -> u64 {
        let heads = self.shared.roots.bytes() + self.shared.branches.bytes();
        self.pool.bytes() + self.locator.bytes() + heads + self.members_bytes() + self.debt.bytes()
    }

    /// Cleans, grows and evicts until an operation may start within the budget; never evicts `protected`, the run it is
    /// about to continue. `false` if nothing is left to evict.
    pub(super) fn make_room(&mut self, protected: u32) -> bool {
        while !self.pool.ready() {
            // What the locator will need for the keys of one more chunk is kept free for it.
            let more = self.pool.chunk_bytes() * 2 + self.locator.bytes() / 8;
            let may_grow = self.bytes() + more <= self.limits.max_bytes;
            if !self.pool.make_room(may_grow) && !self.pay_everything() && !self.evict(protected) {
                return false;
            }
        }
        while self.bytes() > self.limits.max_bytes {
            if !self.pay_everything() && !self.evict(protected) {
                return false;
            }
        }
        true
    }

    /// Room for an operation that only takes away but may have to split.
    pub(super) fn prepare(&mut self) {
        while !self.pool.ready() {
            let may_grow = self.bytes() + self.pool.chunk_bytes() <= self.limits.max_bytes;
            if !self.pool.make_room(may_grow) {
                return;
            }
        }
    }

    /// Drops the end of the least recently used leaf.
    fn evict(&mut self, protected: u32) -> bool {
        let run = self.stale;
        if run == 0 || run == protected {
            return false;
        }
        let view = self.view(run);
        let len = view.len.saturating_sub(PIECE as u32);
        let mut holders = self.take_holders(run);
        let full: Vec<(u32, u32)> = holders.full().map(|worker| (worker, view.len)).collect();
        for (worker, reach) in full.into_iter().chain(std::mem::take(&mut holders.partials)) {
            if reach > len {
                self.lose(worker, reach - len);
                self.stats.evicted_entries += u64::from(reach - len);
            }
            if len == 0 {
                self.leave(worker);
            }
        }
        self.put_scratch(holders);
        self.stats.evicted_keys += u64::from(view.len - len);
        self.trim(run, len, Removal::Now);
        true
    }
}
