//! Greedy-Dual-Frequency-Size: what is cheap to recompute per token, and seldom used, goes first.
//!
//! `H = clock + frequency · cost/size` (Cherkasova 1998); the victim is the least `H`, and the clock rises to it, so
//! that what is not used again sinks. A conversation's cost is its prefill, `α·L + γ·L²/2`, so `cost/size = α + γ·L/2`:
//! without attention cost this is LFU with ageing, and with it long conversations weigh more. Frequency counts the
//! turns served since the conversation last came into the cache.
//!
//! The source evicts whole objects; here the last victim is cut from its end only as far as needed. O(log n) per turn.

use rustc_hash::FxHashMap;

use super::ranked::Ranked;
use super::{CacheConfig, CachePolicy, Served};
use crate::cost::PrefillCost;
use crate::ids::ConversationId;
use crate::units::Tokens;

/// Greedy-Dual-Frequency-Size.
#[derive(Clone, Debug)]
pub struct Gdfs {
    ranked: Ranked,
    config: CacheConfig,
    cost: PrefillCost,
    clock: f64,
    /// Of resident conversations: frequency and H.
    frequencies: FxHashMap<ConversationId, (f64, f64)>,
}

impl Gdfs {
    /// An empty cache. Only the ratio of `cost`'s coefficients to each other matters.
    #[must_use]
    pub fn new(config: CacheConfig, cost: PrefillCost) -> Self {
        Self {
            ranked: Ranked::new(&config),
            config,
            cost,
            clock: 0.0,
            frequencies: FxHashMap::default(),
        }
    }
}

impl CachePolicy for Gdfs {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.ranked.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        let frequency = self
            .frequencies
            .get(&turn.conversation)
            .map_or(0.0, |known| known.0)
            + 1.0;
        let per_token = self.cost.marginal(turn.length, Tokens::ZERO).0 / turn.length.as_f64().max(1.0);
        let h = self.clock + frequency * per_token;
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
            if keep == 0 {
                let h = self.frequencies.remove(&id).map_or(self.clock, |known| known.1);
                self.clock = self.clock.max(h);
            }
            self.ranked.cut(victim, keep);
        }
    }

    fn used(&self) -> Tokens {
        self.ranked.lengths.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.ranked.lengths.dump()
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
