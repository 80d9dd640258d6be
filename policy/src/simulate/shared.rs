//! One cache of hash blocks that conversations share: prefix-closed, evicted leaf first.
//!
//! What an engine does with real prompts: system prompts are shared, conversations fork, and eviction takes blocks, not
//! tokens. The cache is [`PrefixCache`], the one that mirrors and simulated engines run, so a policy here is what such
//! a cache can be told about a finished turn: how much of the chain is worth keeping. The rest becomes evict-first, in
//! the order in which it was said, which is T-LRU's trimming order.
//!
//! | policy | keeps |
//! |---|---|
//! | `lru` | everything |
//! | `threshold-lru` | everything, or nothing of a conversation that is too short |
//! | `t-lru` | `max(0, L + Q̂ − ξ)` |
//! | `end-aware` | that, or nothing after the last turn |
//! | `length-aware` | that with the true next prompt, or nothing after the last turn |
//!
//! Others rank blocks against each other, or lay them over tiers, which a chain's mark cannot say: they run in a tree of
//! their own, [`crate::cache::blocks`]. The hindsight policies must be told who uses each block next.
//!
//! A trace names the blocks of prompts. An answer's blocks get their names when the next prompt repeats them, so they
//! are not resident before: hits are lower than an engine's by the last answer of each history.

use std::sync::Arc;

use super::single::{Measure, SingleReport, Tally, served};
use crate::cache::blocks::foresight::Foresight;
use crate::cache::blocks::{self, BlockPolicy};
use crate::cache::end_aware::TelSafeUntilEnd;
use crate::cache::length_aware::TelSafeExactly;
use crate::cache::lru::KeepAll;
use crate::cache::marked::{Rule as _, Worth};
use crate::cache::prefix::{Keep, Piece, PrefixCache};
use crate::cache::t_lru::TelSafe;
use crate::cache::threshold_lru::LongEnough;
use crate::cache::{CacheConfig, Future, PolicySpec, Served};
use crate::ids::PrefixHash;
use crate::trace::Turn;
use crate::units::{Millis, Tokens};

/// A shared cache on its way through a trace.
pub struct SharedCache {
    spec: PolicySpec,
    config: CacheConfig,
    measure: Measure,
    cache: Blocks,
    tally: Tally,
}

/// Evicted in the order of releases and marks, or by rank.
enum Blocks {
    Marked(PrefixCache),
    Ranked(Box<dyn BlockPolicy>),
}

impl SharedCache {
    /// An empty cache; its blocks are the configuration's. `None` for a hindsight policy without foresight.
    #[must_use]
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
            Blocks::Marked(PrefixCache::new(config.capacity))
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
        let input = turn.input_tokens();
        let chain = chain(turn, block);
        let served = served(turn, future);
        let keep = keep(&self.spec, &self.config, &served);
        let (cached, loading) = match &mut self.cache {
            Blocks::Marked(cache) => (serve_marked(cache, &chain, block, keep), Millis::ZERO),
            Blocks::Ranked(cache) => {
                let (cached, loading) = (cache.cached(&chain), cache.load_time(&chain));
                cache.served(&chain, &served);
                // Checking walks the whole cache: now and then is enough to notice.
                let due = self.tally.turns().is_multiple_of(64);
                debug_assert!(!due || cache.check().is_ok(), "{:?}", cache.check());
                (cached, loading)
            }
        };
        let uncached = input.saturating_sub(cached);
        let ttft = self.measure.cost.prefill(uncached, cached) + loading;
        self.tally.count(&self.measure, input, uncached, ttft);
        ttft
    }

    /// The figures.
    #[must_use]
    pub fn report(self) -> SingleReport {
        self.tally.report(&self.measure)
    }
}

/// What hindsight knows of a whole trace's blocks of this size.
#[must_use]
pub fn foresight<'a>(turns: impl IntoIterator<Item = &'a Turn>, block_tokens: u32) -> Foresight {
    let mut foresight = Foresight::default();
    for turn in turns {
        foresight.push(&chain(turn, block_tokens.max(1)), turn.input_tokens());
    }
    foresight
}

/// A prompt's full blocks: a partly filled one cannot be reused.
fn chain(turn: &Turn, block: u32) -> Vec<PrefixHash> {
    let full = turn.input_tokens().full_blocks(block) as usize;
    let ids = turn.blocks.iter().flatten().take(full);
    ids.map(|id| PrefixHash(*id)).collect()
}

/// What the engines' cache is told of a finished turn.
fn keep(spec: &PolicySpec, config: &CacheConfig, turn: &Served) -> Keep {
    let worth = match spec {
        PolicySpec::ThresholdLru(threshold) => LongEnough(*threshold).worth(config, turn),
        PolicySpec::TLru => TelSafe.worth(config, turn),
        PolicySpec::EndAware => TelSafeUntilEnd.worth(config, turn),
        PolicySpec::LengthAware => TelSafeExactly.worth(config, turn),
        _ => KeepAll.worth(config, turn),
    };
    match worth {
        Worth::All => Keep::All,
        Worth::First(budget) => Keep::First(budget),
        Worth::Nothing => Keep::First(Tokens::ZERO),
    }
}

/// One turn in the engines' own cache. Returns the tokens that were resident.
fn serve_marked(cache: &mut PrefixCache, chain: &[PrefixHash], block: u32, keep: Keep) -> Tokens {
    let pieces = chain.iter().map(|&hash| Piece { hash, tokens: block });
    let lease = cache.acquire(&pieces.collect::<Vec<_>>(), &mut Vec::new());
    let cached = lease.hit_tokens();
    cache.release(lease, keep, &mut Vec::new());
    cached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::PrefillCost;
    use crate::ids::ConversationId;
    use crate::trace::ClassId;

    fn turn(conversation: u64, blocks: &[u64]) -> Turn {
        Turn {
            ts_s: 0.0,
            conversation: ConversationId(conversation),
            turn: 0,
            prompt_tokens: Tokens(10 * blocks.len() as u64),
            history_tokens: Tokens::ZERO,
            response_tokens: Tokens::ZERO,
            blocks: Some(blocks.to_vec()),
            class: ClassId::DEFAULT,
        }
    }

    fn measure(xi_ms: f64) -> Measure {
        Measure {
            cost: PrefillCost::linear(1.0, 0.0),
            xi: Millis(xi_ms),
            slo: Millis(xi_ms),
            per_turn: true,
        }
    }

    fn uncached(spec: PolicySpec, xi_tokens: f64, turns: &[Turn]) -> Vec<u64> {
        let config = CacheConfig {
            block_tokens: 10,
            xi_tokens,
            ..CacheConfig::new(Tokens(60))
        };
        let foresight = Arc::new(foresight(turns, 10));
        let mut cache = SharedCache::new(&spec, config, measure(xi_tokens), Some(&foresight)).unwrap();
        turns
            .iter()
            .for_each(|turn| _ = cache.turn(turn, Future::Unknown));
        cache.report().uncached.unwrap()
    }

    #[test]
    fn conversations_share_their_common_blocks() {
        let turns = [turn(1, &[1, 2, 3]), turn(2, &[1, 2, 4]), turn(3, &[1, 5])];
        assert_eq!(uncached(PolicySpec::Lru, 0.0, &turns), [30, 10, 10]);
    }

    #[test]
    fn t_lru_gives_up_free_tails_first_and_is_lru_without_a_threshold() {
        let turns = [
            turn(1, &[1, 2, 3]),
            turn(2, &[4, 5, 6]),
            turn(3, &[7]),
            turn(1, &[1, 2, 3]),
            turn(2, &[4, 5, 6]),
        ];
        // LRU: block 7 costs block 3, whose return costs block 6, and so on.
        let lru = uncached(PolicySpec::Lru, 0.0, &turns);
        assert_eq!(uncached(PolicySpec::TLru, 0.0, &turns), lru);
        // With 10 tokens free the last block of each conversation goes first: all stay within the threshold.
        let tail = uncached(PolicySpec::TLru, 10.0, &turns);
        assert!(tail[3..].iter().all(|uncached| *uncached <= 10), "{tail:?}");
        let without_foresight = SharedCache::new(
            &PolicySpec::Belady,
            CacheConfig::new(Tokens(1)),
            measure(0.0),
            None,
        );
        assert!(without_foresight.is_none());
    }

    #[test]
    fn hindsight_keeps_what_is_asked_for_soonest_whoever_asks() {
        // Room for six blocks: [1, 2, 3] and [4, 5] are asked for again, [6, 7] is not; LRU would give up [1, 2, 3].
        let turns = [
            turn(1, &[1, 2, 3]),
            turn(2, &[4, 5]),
            turn(3, &[6, 7]),
            turn(4, &[1, 2, 3]),
            turn(5, &[4, 5]),
        ];
        assert_eq!(uncached(PolicySpec::Belady, 0.0, &turns), [30, 20, 20, 0, 0]);
        assert_eq!(uncached(PolicySpec::Lru, 0.0, &turns), [30, 20, 20, 10, 10]);
        // A threshold of 20 makes two blocks of each free: they go for nobody's harm.
        let tail = uncached(PolicySpec::ToBelady, 20.0, &turns);
        assert!(tail[3..].iter().all(|uncached| *uncached <= 20), "{tail:?}");
    }
}
