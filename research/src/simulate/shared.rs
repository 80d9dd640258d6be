//! One cache of hash blocks that conversations share: prefix-closed, evicted leaf first.
//!
//! As in an engine with real prompts, system prompts are shared, conversations fork, and eviction takes blocks, not
//! tokens. The cache is [`policy::cache`], as in mirrors and simulated engines. A policy here sets how much of a
//! finished turn's chain is worth keeping; the rest becomes evict-first, in the order of release, as T-LRU trims.
//!
//! Under optional caching, the default, a turn's blocks compete with all others, its free tail last, and a conversation
//! of no worth is evicted at once, except for blocks that others use. *Forced* caching makes room for the turn first; a
//! conversation of no worth is evicted when the next turn is served. Without sharing both equal
//! [`crate::cache::marked`] on private conversations, turn by turn.
//!
//! Policies that rank blocks against each other or spread them over tiers run in a tree of their own,
//! [`crate::cache::blocks`]. The hindsight policies need the next use of each block.
//!
//! A trace names the blocks of prompts. A response's blocks get their names when the next prompt repeats them, so they
//! are not resident before: hits are lower than an engine's by the last response of each history.

mod marked;

use std::sync::Arc;

use self::marked::MarkedBlocks;
use super::single::{Measure, SingleReport, Tally, served};
use crate::cache::blocks::foresight::Foresight;
use crate::cache::blocks::{self, BlockPolicy};
use crate::cache::end_aware::TelSafeUntilEnd;
use crate::cache::length_aware::TelSafeExactly;
use crate::cache::lru::KeepAll;
use crate::cache::marked::{Rule as _, Worth};
use crate::cache::t_lru::TelSafe;
use crate::cache::threshold_lru::LongEnough;
use crate::cache::{CacheConfig, Future, PolicySpec, Served};
use policy::ids::PrefixHash;
use policy::units::Millis;
use simulator::trace::Turn;

/// A shared cache in the course of a trace.
pub struct SharedCache {
    spec: PolicySpec,
    config: CacheConfig,
    measure: Measure,
    cache: Blocks,
    tally: Tally,
}

/// Blocks evicted in the order of releases and marks, or by rank.
enum Blocks {
    Marked(Box<MarkedBlocks>),
    Ranked(Box<dyn BlockPolicy>),
}

impl SharedCache {
    /// Creates an empty cache. `None` for hindsight without foresight, and for forced caching without marks.
    pub fn new(
        spec: &PolicySpec,
        config: CacheConfig,
        measure: Measure,
        foresight: Option<&Arc<Foresight>>,
    ) -> Option<Self> {
        let marked = matches!(
            spec,
            PolicySpec::Lru
                | PolicySpec::ThresholdLru(_)
                | PolicySpec::TLru
                | PolicySpec::EndAware
                | PolicySpec::LengthAware
        );
        let cache = if marked {
            Blocks::Marked(Box::new(MarkedBlocks::new(&config)))
        } else if config.forced {
            return None;
        } else {
            Blocks::Ranked(blocks::build(spec, config, foresight)?)
        };
        Some(Self {
            spec: spec.clone(),
            config,
            measure,
            cache,
            tally: Tally::new(spec.to_string()),
        })
    }

    /// Serves the next turn and returns its time to first token. A turn without blocks shares and keeps nothing.
    pub fn turn(&mut self, turn: &Turn, future: Future) -> Millis {
        let block = self.config.block_tokens.max(1);
        let chain = chain(turn, block);
        let served = served(turn, future);
        let (cached, loading) = match &mut self.cache {
            Blocks::Marked(cache) => {
                let worth = worth(&self.spec, &self.config, &served);
                (cache.serve(&chain, worth), Millis::ZERO)
            }
            Blocks::Ranked(cache) => {
                let (cached, loading) = (cache.cached(&chain), cache.load_time(&chain));
                cache.served(&chain, &served);
                // Checking walks the whole cache, so only some turns are checked.
                let due = self.tally.turns().is_multiple_of(64);
                debug_assert!(!due || cache.check().is_ok(), "{:?}", cache.check());
                (cached, loading)
            }
        };
        self.tally
            .count(&self.measure, turn.input_tokens(), cached, loading)
    }

    /// Returns the figures.
    pub fn report(self) -> SingleReport {
        self.tally.report(&self.measure)
    }
}

/// Returns the foresight for a whole trace's blocks of this size.
pub fn foresight<'a>(turns: impl IntoIterator<Item = &'a Turn>, block_tokens: u32) -> Foresight {
    let mut foresight = Foresight::default();
    for turn in turns {
        foresight.push(&chain(turn, block_tokens.max(1)), turn.input_tokens());
    }
    foresight
}

/// Returns a prompt's full blocks: a partly filled one cannot be reused.
fn chain(turn: &Turn, block: u32) -> Vec<PrefixHash> {
    let full = turn.input_tokens().full_blocks(block) as usize;
    let ids = turn.blocks.iter().flatten().take(full);
    ids.map(|id| PrefixHash(*id)).collect()
}

fn worth(spec: &PolicySpec, config: &CacheConfig, turn: &Served) -> Worth {
    match spec {
        PolicySpec::ThresholdLru(threshold) => LongEnough(*threshold).worth(config, turn),
        PolicySpec::TLru => TelSafe.worth(config, turn),
        PolicySpec::EndAware => TelSafeUntilEnd.worth(config, turn),
        PolicySpec::LengthAware => TelSafeExactly.worth(config, turn),
        _ => KeepAll.worth(config, turn),
    }
}

#[cfg(test)]
mod tests;
