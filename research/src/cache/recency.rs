//! Resident prefixes in the order of their last turns: a log that is read from its old end.
//!
//! The LRU family does only a few additions per turn, so the cost of a turn is its memory latency. A linked list waits
//! for the conversation's neighbours, and for every link of a walk. Here the memory layout is the order:
//! - a turn appends its conversation's whole entry to a ring; the old entry stays behind, dead;
//! - eviction reads the ring from its old end, and trimming continues where it stopped last, both in the order of
//!   memory, which the processor prefetches;
//! - free tokens need no list of their own: a budget changes only when its conversation becomes the youngest, so
//!   nothing older than the last one trimmed has free tokens, and a cursor marks where the next ones are.
//!
//! A map leads from a conversation to the position of its entry, which counts up for ever, modulo the ring's size. A
//! full ring grows while more than half of it is alive, and is swept otherwise: live entries close up, in order. So it
//! never has more than four times as many places as conversations were alive at once, and a sweep of `n` was preceded
//! by at least `n` turns: O(1) amortised.
//!
//! Rejected: linked lists. T-LRU then took 1.3 times LRU's time per turn, at equal numbers of conversations.

#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;

use super::{CacheConfig, round_up};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Size of the smallest ring.
const LEAST: usize = 16;

/// A conversation after its last turn, less what was evicted since.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: ConversationId,
    /// Resident tokens; 0 in a dead entry.
    resident: u64,
    /// Number of tokens past which the others are free.
    budget: u64,
}

const DEAD: Entry = Entry {
    id: ConversationId(0),
    resident: 0,
    budget: u64::MAX,
};

pub(super) const NO_BUDGET: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(super) struct Recency {
    capacity: u64,
    block: u64,
    used: u64,
    positions: FxHashMap<ConversationId, u64>,
    /// Entries in a buffer whose length is a power of two.
    ring: Vec<Entry>,
    /// Position of the oldest entry, which may be dead, as others may.
    begin: u64,
    /// Position after the youngest entry.
    end: u64,
    /// Position before which no entry has free tokens.
    cursor: u64,
}

impl Recency {
    pub(super) fn new(config: &CacheConfig) -> Self {
        Self {
            capacity: config.capacity.0,
            block: config.block(),
            used: 0,
            positions: FxHashMap::default(),
            ring: vec![DEAD; LEAST],
            begin: 0,
            end: 0,
            cursor: 0,
        }
    }

    pub(super) fn resident(&self, id: ConversationId) -> Tokens {
        let position = self.positions.get(&id);
        Tokens(position.map_or(0, |position| self.ring[self.place(*position)].resident))
    }

    pub(super) fn used(&self) -> Tokens {
        Tokens(self.used)
    }

    pub(super) fn fits(&self) -> bool {
        self.used <= self.capacity
    }

    /// Makes the conversation wholly resident and the youngest, free past `budget`. Removes it if it has no full block.
    pub(super) fn touch(&mut self, id: ConversationId, length: Tokens, budget: u64) {
        let resident = if self.block == 1 {
            length.0
        } else {
            length.0 - length.0 % self.block
        };
        if resident == 0 {
            self.forget(id);
            return;
        }
        if self.end - self.begin == self.ring.len() as u64 {
            self.make_room();
        }
        let position = self.end;
        if let Some(before) = self.positions.insert(id, position) {
            let place = self.place(before);
            self.used -= self.ring[place].resident;
            self.ring[place].resident = 0;
        }
        self.used += resident;
        let place = self.place(position);
        self.ring[place] = Entry { id, resident, budget };
        self.end += 1;
    }

    pub(super) fn forget(&mut self, id: ConversationId) {
        if let Some(position) = self.positions.remove(&id) {
            let place = self.place(position);
            self.used -= self.ring[place].resident;
            self.ring[place].resident = 0;
        }
    }

    /// Trims free tokens, oldest conversation first, until the cache fits. Excludes the youngest if it is `spared`.
    pub(super) fn trim_free(&mut self, spared: bool) {
        while !self.fits() {
            let excess = self.excess();
            let Some(entry) = self.oldest_free(spared) else {
                return;
            };
            let keep = entry.resident.saturating_sub(excess).max(entry.budget);
            self.cut_at_cursor(keep);
        }
    }

    /// Trims every free token, whether or not the room is needed.
    pub(super) fn trim_all_free(&mut self, spared: bool) {
        while let Some(entry) = self.oldest_free(spared) {
            self.cut_at_cursor(entry.budget);
        }
    }

    /// Evicts conversations from their ends, oldest first, until the cache fits; forced caching needs no other
    /// protection.
    pub(super) fn evict_oldest(&mut self) {
        while !self.fits() {
            let (excess, place) = (self.excess(), self.place(self.begin));
            let entry = &mut self.ring[place];
            if entry.resident > excess {
                entry.resident -= excess;
                self.used -= excess;
                return;
            }
            if entry.resident > 0 {
                self.used -= entry.resident;
                entry.resident = 0;
                self.positions.remove(&entry.id);
            }
            self.begin += 1;
        }
    }

    pub(super) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.alive()
            .map(|(_, entry)| (entry.id, Tokens(entry.resident)))
            .collect()
    }

    fn alive(&self) -> impl Iterator<Item = (u64, &Entry)> {
        (self.begin..self.end)
            .map(|position| (position, &self.ring[self.place(position)]))
            .filter(|(_, entry)| entry.resident > 0)
    }

    fn place(&self, position: u64) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    fn excess(&self) -> u64 {
        round_up(self.used.saturating_sub(self.capacity), self.block)
    }

    /// Advances the cursor to the oldest conversation with free tokens.
    fn oldest_free(&mut self, spared: bool) -> Option<Entry> {
        let end = self.end - u64::from(spared && self.end > self.begin);
        self.cursor = self.cursor.max(self.begin);
        while self.cursor < end {
            let entry = self.ring[self.place(self.cursor)];
            if entry.resident > entry.budget {
                return Some(entry);
            }
            self.cursor += 1;
        }
        None
    }

    fn cut_at_cursor(&mut self, keep: u64) {
        let place = self.place(self.cursor);
        let entry = &mut self.ring[place];
        self.used -= entry.resident - keep;
        entry.resident = keep;
        if keep == 0 {
            self.positions.remove(&entry.id);
        }
    }

    fn make_room(&mut self) {
        let places = self.ring.len();
        if self.positions.len() > places / 2 {
            let mut wider = vec![DEAD; places * 2];
            for position in self.begin..self.end {
                wider[position as usize & (places * 2 - 1)] = self.ring[self.place(position)];
            }
            self.ring = wider;
        } else {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let (mut to, mut cursor) = (self.begin, self.begin);
        for position in self.begin..self.end {
            let entry = self.ring[self.place(position)];
            if entry.resident > 0 {
                cursor += u64::from(position < self.cursor);
                let place = self.place(to);
                self.ring[place] = entry;
                self.positions.insert(entry.id, to);
                to += 1;
            }
        }
        (self.end, self.cursor) = (to, cursor);
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let sum: u64 = self.alive().map(|(_, entry)| entry.resident).sum();
        if sum != self.used {
            return Err(format!("{sum} tokens are resident, {} are counted", self.used));
        }
        if !self.fits() {
            return Err(format!("{} tokens in a cache of {}", self.used, self.capacity));
        }
        let count = self.alive().count();
        if count != self.positions.len() {
            return Err(format!("{count} alive, {} indexed", self.positions.len()));
        }
        for (position, entry) in self.alive() {
            let id = entry.id.0;
            if self.positions.get(&entry.id) != Some(&position) || !entry.resident.is_multiple_of(self.block)
            {
                return Err(format!("conversation {id} at {position} is inconsistent"));
            }
            if position < self.cursor && entry.resident > entry.budget {
                return Err(format!("free tokens of conversation {id} are behind the cursor"));
            }
        }
        let places = self.ring.len() as u64;
        if !self.ring.len().is_power_of_two() || self.end - self.begin > places {
            return Err(format!("{} entries in {places} places", self.end - self.begin));
        }
        Ok(())
    }
}
