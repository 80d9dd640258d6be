//! The byte budget: accounting and eviction.

use super::trim::Removal;
use super::{PIECE, Writer};
use crate::index::heads::Heads;

/// Inverse of the budget share always left to the locator and the lists, which can shrink.
const LEAST_SHARE: u64 = 32;

impl Writer {
    pub(super) fn bytes(&self) -> u64 {
        let members = self.members_bytes() + (self.mergeable.capacity() * size_of::<u32>()) as u64;
        self.lasting_bytes() + self.locator.bytes() + members + self.debt.bytes()
    }

    /// Returns the bytes that readers may access, which are never freed.
    fn lasting_bytes(&self) -> u64 {
        self.pool.bytes() + self.shared.roots.bytes() + self.shared.branches.bytes()
    }

    /// Makes room for an operation within the budget without evicting `protected`. Returns `false` if it cannot.
    pub(super) fn make_room(&mut self, protected: u32) -> bool {
        self.make_room_in_heads(protected);
        while !self.pool.ready() {
            // Reserve for the locator and the heads of one more chunk's keys and runs.
            let more = self.pool.chunk_bytes() * 2 + self.locator.bytes() / 8 + self.heads_reserve();
            let may_grow = self.bytes() + more <= self.limits.max_bytes;
            if !self.pool.make_room(may_grow) && !self.pay_all_keys() && !self.evict(protected) {
                return false;
            }
        }
        // Evicting to compensate for memory that never shrinks would evict everything, so a share is always left.
        let max = self.limits.max_bytes;
        let limit = max.max(self.lasting_bytes() + max / LEAST_SHARE);
        while self.bytes() > limit {
            if !self.pay_all_keys() && !self.evict(protected) {
                return false;
            }
        }
        true
    }

    /// Grows or evicts for the tables of heads. Their memory is never freed, so they double only within the budget.
    fn make_room_in_heads(&mut self, protected: u32) {
        while self.heads_need_room() {
            if !self.pay_all_keys() && !self.evict(protected) {
                return;
            }
        }
    }

    /// Returns the bytes by which one more chunk of records would make the head tables grow within the budget.
    fn heads_reserve(&self) -> u64 {
        let runs = self.shared.words.chunk_lines();
        let free = self.limits.max_bytes.saturating_sub(self.bytes());
        let growing = [&self.shared.roots, &self.shared.branches]
            .into_iter()
            .filter(|heads| heads.crowded_by(runs))
            .map(Heads::next_bytes);
        growing.filter(|bytes| *bytes <= free).sum()
    }

    /// Grows crowded head tables if the budget allows. Returns whether one is still crowded.
    fn heads_need_room(&self) -> bool {
        let heads = [&self.shared.roots, &self.shared.branches];
        let crowded = heads.map(|heads| {
            if heads.crowded() && self.bytes() + heads.next_bytes() <= self.limits.max_bytes {
                heads.grow();
            }
            heads.crowded()
        });
        crowded.contains(&true)
    }

    /// Makes room for an operation that only removes but may have to split.
    pub(super) fn prepare(&mut self) {
        self.heads_need_room();
        while !self.pool.ready() {
            let may_grow = self.bytes() + self.pool.chunk_bytes() <= self.limits.max_bytes;
            if !self.pool.make_room(may_grow) {
                return;
            }
        }
    }

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
