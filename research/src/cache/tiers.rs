//! T-LRU over a stack of tiers: HBM, host memory, disk, a remote store.
//!
//! Each tier has a capacity, a time per token to load its tokens to the top, and a unit in which it stores (DeepSeek's
//! disk cache: 64 tokens). The paper leaves this as an open problem (§6); the simplest reading is used:
//! - a served conversation is wholly in the top tier;
//! - a tier that overflows demotes *free* tokens first, oldest conversation first, then those of the oldest
//!   conversation, in both cases from the end of the conversation's part there: T-LRU at every level;
//! - demoted tokens move to the next tier down, in whole units of it; the last tier drops them.
//!
//! So a conversation is a prefix spread over the tiers from the top down, and all of it is a hit; its lower parts add
//! their loading time. O(log n) per conversation moved and tier. With one tier this is exactly T-LRU.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{CacheConfig, CachePolicy, Served};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tier {
    /// Capacity in tokens.
    pub capacity: Tokens,
    /// Time to load one token to the top tier.
    pub ms_per_token: f64,
    /// Tokens per stored unit.
    pub unit_tokens: u32,
}

/// T-LRU over tiers.
#[derive(Clone, Debug)]
pub struct TierStack {
    config: CacheConfig,
    tiers: Vec<Level>,
    conversations: FxHashMap<ConversationId, Laid>,
    served: u64,
}

#[derive(Clone, Debug)]
struct Level {
    tier: Tier,
    used: u64,
    order: BTreeSet<(u64, ConversationId)>,
    free: BTreeSet<(u64, ConversationId)>,
}

/// A conversation's prefix, spread over the tiers.
#[derive(Clone, Debug)]
struct Laid {
    served: u64,
    budget: u64,
    /// By tier: the end of the conversation's part in it, which begins at the end of the part above. Never decreases
    /// from tier to tier.
    ends: Vec<u64>,
}

impl Laid {
    fn begin(&self, level: usize) -> u64 {
        level.checked_sub(1).map_or(0, |above| self.ends[above])
    }

    fn here(&self, level: usize) -> u64 {
        self.ends[level] - self.begin(level)
    }

    /// Returns the tokens of this tier past the budget, in whole units.
    fn free(&self, level: usize, unit: u64) -> u64 {
        let past = self.ends[level].saturating_sub(self.begin(level).max(self.budget));
        past - past % unit
    }
}

impl TierStack {
    /// Creates an empty stack: the configuration's tier on top, in its blocks and without loading time, then `lower`.
    pub fn new(config: CacheConfig, lower: &[Tier]) -> Self {
        let top = Tier {
            capacity: config.capacity,
            ms_per_token: 0.0,
            unit_tokens: config.block_tokens,
        };
        let level = |tier: &Tier| Level {
            tier: *tier,
            used: 0,
            order: BTreeSet::new(),
            free: BTreeSet::new(),
        };
        let tiers = std::iter::once(&top).chain(lower).map(level).collect();
        Self {
            config,
            tiers,
            conversations: FxHashMap::default(),
            served: 0,
        }
    }

    /// Returns the tokens of the conversation in each tier, top first.
    #[cfg(test)]
    pub fn per_tier(&self, conversation: ConversationId) -> Vec<Tokens> {
        let laid = self.conversations.get(&conversation);
        (0..self.tiers.len())
            .map(|level| Tokens(laid.map_or(0, |laid| laid.here(level))))
            .collect()
    }

    /// Returns the tokens in each tier, top first.
    #[cfg(test)]
    pub fn used_per_tier(&self) -> Vec<Tokens> {
        self.tiers.iter().map(|level| Tokens(level.used)).collect()
    }

    fn unit(&self, level: usize) -> u64 {
        u64::from(self.tiers[level].tier.unit_tokens.max(1))
    }

    /// Sets the end of each part, and updates the tiers' sums.
    fn lay(&mut self, id: ConversationId, mut laid: Laid, ends: Vec<u64>) {
        for (at, level) in self.tiers.iter_mut().enumerate() {
            level.used -= laid.here(at);
            level.order.remove(&(laid.served, id));
            level.free.remove(&(laid.served, id));
        }
        laid.ends = ends;
        for (at, level) in self.tiers.iter_mut().enumerate() {
            level.used += laid.here(at);
            if laid.here(at) > 0 {
                level.order.insert((laid.served, id));
            }
            if laid.free(at, u64::from(level.tier.unit_tokens.max(1))) > 0 {
                level.free.insert((laid.served, id));
            }
        }
        match laid.ends.last() {
            Some(0) | None => self.conversations.remove(&id),
            Some(_) => self.conversations.insert(id, laid),
        };
    }

    /// Moves tokens from the end of the part of `id` in `level` down: up to the excess, of the free ones or of all.
    fn demote(&mut self, level: usize, id: ConversationId, only_free: bool) {
        let Some(laid) = self.conversations.get(&id).cloned() else {
            return;
        };
        let tier = &self.tiers[level];
        let unit = self.unit(level);
        let excess = tier.used.saturating_sub(tier.tier.capacity.0).div_ceil(unit) * unit;
        let most = if only_free {
            laid.free(level, unit)
        } else {
            laid.here(level)
        };
        let cut = laid.ends[level] - excess.min(most);
        let mut ends = laid.ends.clone();
        ends[level] = cut;
        match ends.get(level + 1).copied() {
            // The tier below takes it: its part now begins at the cut, and still ends at a whole unit of its own.
            Some(below) => ends[level + 1] = below.max(laid.ends[level]),
            None => ends[level..].iter_mut().for_each(|end| *end = (*end).min(cut)),
        }
        for lower in level + 1..ends.len() {
            let unit = self.unit(lower);
            let begin = ends[lower - 1];
            // Whole units from the beginning of the part; a remainder is dropped, and what follows it.
            let whole = begin + ends[lower].saturating_sub(begin) / unit * unit;
            if whole < ends[lower] {
                ends[lower] = whole;
                ends[lower + 1..].iter_mut().for_each(|end| *end = whole);
            }
        }
        self.lay(id, laid, ends);
    }

    fn settle(&mut self, level: usize, spared: Option<ConversationId>) {
        let overfull = |tiers: &[Level]| tiers[level].used > tiers[level].tier.capacity.0;
        while overfull(&self.tiers) {
            let free = self.tiers[level]
                .free
                .iter()
                .map(|entry| entry.1)
                .find(|id| Some(*id) != spared);
            let Some(id) = free else { break };
            self.demote(level, id, true);
        }
        while overfull(&self.tiers) {
            let Some(&(_, oldest)) = self.tiers[level].order.first() else {
                break;
            };
            self.demote(level, oldest, false);
        }
    }
}

impl CachePolicy for TierStack {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        let laid = self.conversations.get(&conversation);
        Tokens(laid.and_then(|laid| laid.ends.last().copied()).unwrap_or(0))
    }

    fn served(&mut self, turn: &Served) {
        let id = turn.conversation;
        self.served += 1;
        let empty = vec![0; self.tiers.len()];
        if let Some(laid) = self.conversations.get(&id).cloned() {
            self.lay(id, laid, empty.clone());
        }
        let whole = turn.length.0 - turn.length.0 % self.unit(0);
        let budget = self.config.budget(turn.length, self.config.next_prompt);
        let fresh = Laid {
            served: self.served,
            budget,
            ends: empty.clone(),
        };
        self.lay(id, fresh, vec![whole; self.tiers.len()]);
        for level in 0..self.tiers.len() {
            self.settle(level, (self.config.forced && level == 0).then_some(id));
        }
    }

    fn used(&self) -> Tokens {
        Tokens(self.tiers.iter().map(|level| level.used).sum())
    }

    fn load_time(&self, conversation: ConversationId, cached: Tokens) -> Millis {
        let Some(laid) = self.conversations.get(&conversation) else {
            return Millis::ZERO;
        };
        let part = |(level, tier): (usize, &Level)| {
            let tokens = laid.ends[level].min(cached.0).saturating_sub(laid.begin(level));
            Millis(tier.tier.ms_per_token * tokens as f64)
        };
        self.tiers.iter().enumerate().map(part).sum()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.conversations
            .keys()
            .map(|id| (*id, self.resident(*id)))
            .collect()
    }

    fn check(&self) -> Result<(), String> {
        for (at, level) in self.tiers.iter().enumerate() {
            let parts: u64 = self.conversations.values().map(|laid| laid.here(at)).sum();
            if parts != level.used || level.used > level.tier.capacity.0 {
                let capacity = level.tier.capacity;
                return Err(format!(
                    "tier {at}: {} counted, {parts} laid, room for {capacity}",
                    level.used
                ));
            }
            let whole = |laid: &Laid| laid.here(at).is_multiple_of(self.unit(at));
            if self.conversations.values().any(|laid| !whole(laid)) {
                return Err(format!("tier {at} holds a broken unit"));
            }
        }
        let sinks = |laid: &Laid| laid.ends.windows(2).any(|pair| pair[0] > pair[1]);
        if self.conversations.values().any(sinks) {
            Err("a prefix has a gap".to_owned())
        } else {
            Ok(())
        }
    }
}
