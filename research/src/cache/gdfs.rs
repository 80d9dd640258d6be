//! Greedy-Dual-Frequency-Size: evicts what is cheap to recompute per token and seldom used.
//!
//! `H = clock + frequency · cost/size` (Cherkasova 1998). The victim is the least `H`, and the clock rises to it, so
//! that unused entries sink. A conversation's cost is its prefill, `α·L + γ·L²/2`, so `cost/size = α + γ·L/2`: without
//! attention this is LFU with ageing; with it, long conversations weigh more. Frequency counts the turns served since
//! the conversation came into the cache. The source evicts whole objects; here the last victim is cut only as far as
//! needed, in O(log n) per turn. A shared block is an object, at the cost of its tokens after those before it.

use rustc_hash::FxHashMap;

use super::ranked::Ranked;
use super::{CacheConfig, CachePolicy, Served, residency_of};
use policy::cost::PrefillCost;
use policy::ids::ConversationId;
use policy::units::Tokens;

#[derive(Clone, Debug)]
pub(super) struct GreedyDual {
    cost: PrefillCost,
    clock: f64,
}

impl GreedyDual {
    pub(super) fn new(cost: PrefillCost) -> Self {
        Self { cost, clock: 0.0 }
    }

    /// Returns H of `size` tokens after `before` others, used `frequency` times.
    pub(super) fn h(&self, frequency: f64, size: Tokens, before: Tokens) -> f64 {
        let per_token = self.cost.marginal(size, before).0 / size.as_f64().max(1.0);
        self.clock + frequency * per_token
    }

    pub(super) fn evicted(&mut self, h: f64) {
        self.clock = self.clock.max(h);
    }
}

/// Greedy-Dual-Frequency-Size.
#[derive(Clone, Debug)]
pub struct Gdfs {
    ranked: Ranked,
    config: CacheConfig,
    dual: GreedyDual,
    frequencies: FxHashMap<ConversationId, (f64, f64)>,
}

impl Gdfs {
    /// Creates an empty cache. Only the ratio of `cost`'s coefficients matters.
    pub fn new(config: CacheConfig, cost: PrefillCost) -> Self {
        Self {
            ranked: Ranked::new(&config),
            config,
            dual: GreedyDual::new(cost),
            frequencies: FxHashMap::default(),
        }
    }
}

impl CachePolicy for Gdfs {
    residency_of!(ranked.lengths);

    fn served(&mut self, turn: &Served) {
        let frequency = self
            .frequencies
            .get(&turn.conversation)
            .map_or(0.0, |known| known.0)
            + 1.0;
        let h = self.dual.h(frequency, turn.length, Tokens::ZERO);
        let slot = self.ranked.touch(turn.conversation, turn.length, h);
        if slot.is_some() {
            self.frequencies.insert(turn.conversation, (frequency, h));
        } else {
            self.frequencies.remove(&turn.conversation);
        }
        while !self.ranked.lengths.fits() {
            let Some(victim) = self.ranked.victim(slot.filter(|_| self.config.forced)) else {
                return;
            };
            let id = self.ranked.lengths.id_at(victim);
            let keep = self
                .ranked
                .lengths
                .resident_at(victim)
                .saturating_sub(self.ranked.lengths.excess());
            if keep == 0
                && let Some((_, h)) = self.frequencies.remove(&id)
            {
                self.dual.evicted(h);
            }
            self.ranked.cut(victim, keep);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.ranked.check()?;
        let (resident, counted) = (self.ranked.lengths.len(), self.frequencies.len());
        if resident == counted {
            Ok(())
        } else {
            Err(format!("{resident} resident, {counted} counted"))
        }
    }
}
