//! The byte budget: what counts, and what goes when it is used up.

use super::trim::Removal;
use super::{PIECE, Writer};
use crate::index::heads::Heads;

/// The part of the budget that what can shrink may always take, locator and lists.
const LEAST_SHARE: u64 = 32;

impl Writer {
    /// Every byte the index has from the allocator.
    pub(super) fn bytes(&self) -> u64 {
        let members = self.members_bytes() + (self.mergeable.capacity() * size_of::<u32>()) as u64;
        self.lasting_bytes() + self.locator.bytes() + members + self.debt.bytes()
    }

    /// Bytes that readers may look at, and that therefore are never given back.
    fn lasting_bytes(&self) -> u64 {
        self.pool.bytes() + self.shared.roots.bytes() + self.shared.branches.bytes()
    }

    /// Cleans, grows and evicts until an operation may start within the budget; never evicts `protected`, the run it is
    /// about to continue. `false` if nothing is left to evict.
    pub(super) fn make_room(&mut self, protected: u32) -> bool {
        self.make_room_in_heads(protected);
        while !self.pool.ready() {
            // What the locator and the heads will need for the keys and runs of one more chunk is kept free for them.
            let more = self.pool.chunk_bytes() * 2 + self.locator.bytes() / 8 + self.heads_reserve();
            let may_grow = self.bytes() + more <= self.limits.max_bytes;
            if !self.pool.make_room(may_grow) && !self.pay_everything() && !self.evict(protected) {
                return false;
            }
        }
        // Evicting for the sake of what never shrinks would evict everything: some is always left for the rest.
        let max = self.limits.max_bytes;
        let limit = max.max(self.lasting_bytes() + max / LEAST_SHARE);
        while self.bytes() > limit {
            if !self.pay_everything() && !self.evict(protected) {
                return false;
            }
        }
        true
    }

    /// A table of heads that is half full doubles, and the memory of it is never given back. So it does so only within
    /// the budget; where it cannot, the number of runs has reached its bound, and one goes for each that comes.
    fn make_room_in_heads(&mut self, protected: u32) {
        while self.heads_need_room() {
            if !self.pay_everything() && !self.evict(protected) {
                return;
            }
        }
    }

    /// Bytes of the tables of heads that one more chunk of records would have grow; of those that would fit, as nothing is
    /// gained by holding back for one that does not.
    fn heads_reserve(&self) -> u64 {
        let runs = self.shared.words.chunk_lines();
        let free = self.limits.max_bytes.saturating_sub(self.bytes());
        let growing = [&self.shared.roots, &self.shared.branches]
            .into_iter()
            .filter(|heads| heads.crowded_by(runs))
            .map(Heads::next_bytes);
        growing.filter(|bytes| *bytes <= free).sum()
    }

    /// Lets crowded tables of heads grow if the budget allows; whether one is crowded still.
    fn heads_need_room(&mut self) -> bool {
        let shared = std::sync::Arc::clone(&self.shared);
        let crowded = [&shared.roots, &shared.branches].map(|heads| {
            if heads.crowded() && self.bytes() + heads.next_bytes() <= self.limits.max_bytes {
                heads.grow();
            }
            heads.crowded()
        });
        crowded.contains(&true)
    }

    /// Room for an operation that only takes away but may have to split.
    pub(super) fn prepare(&mut self) {
        self.heads_need_room();
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
