use proptest::prelude::*;

use super::*;
use crate::simulate::future::futures;
use crate::simulate::single::SingleCache;
use policy::cost::PrefillCost;
use policy::ids::ConversationId;
use policy::units::Tokens;
use simulator::trace::{Captured, ClassId};

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
        captured: Captured::default(),
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
    // LRU: block 7 evicts block 3, whose return evicts block 6, and so on.
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
    // Room for six blocks: [1, 2, 3] and [4, 5] are used again, [6, 7] is not; LRU would evict [1, 2, 3].
    let turns = [
        turn(1, &[1, 2, 3]),
        turn(2, &[4, 5]),
        turn(3, &[6, 7]),
        turn(4, &[1, 2, 3]),
        turn(5, &[4, 5]),
    ];
    assert_eq!(uncached(PolicySpec::Belady, 0.0, &turns), [30, 20, 20, 0, 0]);
    assert_eq!(uncached(PolicySpec::Lru, 0.0, &turns), [30, 20, 20, 10, 10]);
    // A threshold of 20 makes two blocks of each free, so their eviction does no harm.
    let tail = uncached(PolicySpec::ToBelady, 20.0, &turns);
    assert!(tail[3..].iter().all(|uncached| *uncached <= 20), "{tail:?}");
}

fn both(spec: &PolicySpec, config: CacheConfig, raw: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>) {
    let mut lengths = std::collections::HashMap::<u64, (u64, u32)>::new();
    let grow = |&(conversation, prompt): &(u64, u64)| {
        let (length, number) = lengths.entry(conversation).or_default();
        let history = std::mem::replace(length, *length + prompt);
        *number += 1;
        let blocks: Vec<u64> = (0..*length / 10).map(|at| conversation * 1000 + at).collect();
        Turn {
            turn: *number - 1,
            prompt_tokens: Tokens(prompt),
            history_tokens: Tokens(history),
            ..turn(conversation, &blocks)
        }
    };
    let turns: Vec<Turn> = raw.iter().map(grow).collect();
    let told: Vec<_> = turns
        .iter()
        .map(|turn| (turn.conversation, turn.prompt_tokens))
        .collect();
    let measure = measure(config.xi_tokens);
    let mut private = SingleCache::new(spec, config, measure);
    let mut shared = SharedCache::new(spec, config, measure, None).unwrap();
    for (turn, future) in turns.iter().zip(futures(&told)) {
        private.turn(turn, future);
        shared.turn(turn, future);
    }
    (
        private.report().uncached.unwrap(),
        shared.report().uncached.unwrap(),
    )
}

fn family() -> [PolicySpec; 5] {
    [
        PolicySpec::Lru,
        PolicySpec::ThresholdLru(Tokens(30)),
        PolicySpec::TLru,
        PolicySpec::EndAware,
        PolicySpec::LengthAware,
    ]
}

proptest! {
    #[test]
    fn without_sharing_shared_blocks_are_private_conversations(
        raw in proptest::collection::vec((0u64..6, 0u64..40), 1..60),
        capacity in 0u64..300, xi in 0u32..80, q in 0u64..30, forced in any::<bool>(),
    ) {
        let config = CacheConfig {
            block_tokens: 10,
            xi_tokens: f64::from(xi),
            next_prompt: Tokens(q),
            forced,
            ..CacheConfig::new(Tokens(capacity))
        };
        for spec in family() {
            let (private, shared) = both(&spec, config, &raw);
            prop_assert_eq!(private, shared, "{}", spec);
        }
    }

    #[test]
    fn one_tier_with_a_threshold_is_t_lru_on_shared_blocks(
        raw in proptest::collection::vec((0u64..4, 1usize..6), 1..40), capacity in 0u64..200, xi in 0u32..60,
    ) {
        // Chains that branch off a common beginning, each with names of its own.
        let chain = |&(branch, blocks): &(u64, usize)| {
            let name = |at: u64| if at < 2 { at } else { (1 + branch) * 100 + at };
            turn(branch, &(0..blocks as u64).map(name).collect::<Vec<_>>())
        };
        let turns: Vec<Turn> = raw.iter().map(chain).collect();
        let config = CacheConfig {
            block_tokens: 10,
            xi_tokens: f64::from(xi),
            ..CacheConfig::new(Tokens(capacity))
        };
        let run = |spec| {
            let mut cache = SharedCache::new(&spec, config, measure(f64::from(xi)), None).unwrap();
            turns.iter().for_each(|turn| _ = cache.turn(turn, Future::Unknown));
            cache.report().uncached.unwrap()
        };
        prop_assert_eq!(run(PolicySpec::TLru), run(PolicySpec::Tiers(Vec::new())));
    }
}

#[test]
fn a_turns_own_free_tail_goes_before_what_others_need() {
    let config = CacheConfig {
        block_tokens: 10,
        xi_tokens: 20.0,
        ..CacheConfig::new(Tokens(50))
    };
    let raw = [(1, 40), (2, 40), (1, 0)];
    let optional = both(&PolicySpec::TLru, config, &raw);
    assert_eq!(optional.1, [40, 40, 20]);
    assert_eq!(optional.0, optional.1);
    let forced = both(
        &PolicySpec::TLru,
        CacheConfig {
            forced: true,
            ..config
        },
        &raw,
    );
    assert_eq!(forced.1, [40, 40, 30]);
    assert_eq!(forced.0, forced.1);
}

#[test]
fn policies_that_rank_have_no_forced_form_on_shared_blocks() {
    let config = CacheConfig {
        forced: true,
        ..CacheConfig::new(Tokens(50))
    };
    assert!(SharedCache::new(&PolicySpec::Gdfs(0.0), config, measure(1.0), None).is_none());
}
