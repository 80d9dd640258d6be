use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::hybrid::HybridBlocks;
use super::naive::{NaiveHindsight, NaiveHybrid, NaiveScored, NaiveTiered, NaiveTrimmed};
use super::scored::{Score, Used};
use super::*;
use crate::cache::Future;
use crate::cache::et_lru::EtLruOptions;
use crate::cache::flop_aware::FlopAwareOptions;
use crate::cache::prefix::{Keep, Piece, PrefixCache};
use crate::cache::tiers::Tier;
use crate::ids::ConversationId;
use crate::trace::ClassId;
use crate::units::Millis;

fn hashes(names: &[u64]) -> Vec<PrefixHash> {
    names.iter().map(|name| PrefixHash(*name)).collect()
}

/// A turn at a time in ms, as long as its blocks of 10.
fn turn(conversation: u64, at: u64, blocks: usize) -> Served {
    Served {
        conversation: ConversationId(conversation),
        turn: 0,
        class: ClassId::DEFAULT,
        at: Millis(at as f64),
        prompt: Tokens(10),
        length: Tokens(10 * blocks as u64),
        future: Future::Unknown,
    }
}

fn config(capacity: u64) -> CacheConfig {
    CacheConfig {
        block_tokens: 10,
        ..CacheConfig::new(Tokens(capacity))
    }
}

/// States worth two blocks.
const HYBRID: FlopAwareOptions = FlopAwareOptions {
    attention: 0.0,
    state_tokens: 20.0,
    weight: Some(0.0),
};

struct Hybrid {
    cache: HybridBlocks,
    now: u64,
}

impl Hybrid {
    fn new(capacity: u64, options: FlopAwareOptions) -> Self {
        let cache = HybridBlocks::new(config(capacity), options);
        Self { cache, now: 0 }
    }

    /// Serves a chain and says how many of its blocks were resumed.
    fn serve(&mut self, chain: &[u64]) -> u64 {
        let resumed = self.cache.cached(&hashes(chain)).0 / 10;
        self.now += 1;
        self.cache
            .served(&hashes(chain), &turn(chain[0], self.now, chain.len()));
        assert_eq!(self.cache.check(), Ok(()));
        resumed
    }

    fn resumable(&self, chain: &[u64]) -> Vec<usize> {
        self.cache.resumable(&hashes(chain))
    }
}

#[test]
fn a_branching_is_admitted_when_it_is_seen_and_resumed_by_the_third() {
    let mut f = Hybrid::new(1000, HYBRID);
    // Nothing is known of what is shared: one state, at the end.
    assert_eq!(f.serve(&[1, 2, 3, 4]), 0);
    assert_eq!(f.resumable(&[1, 2, 3, 4]), [4]);
    // Blocks 1 and 2 are resident but no state was saved after them: all is computed, and the state saved in passing.
    assert_eq!(f.serve(&[1, 2, 5]), 0);
    assert_eq!(f.resumable(&[1, 2, 5]), [2, 3]);
    assert_eq!(f.serve(&[1, 2, 6, 7]), 2);
    // The next turn of the first conversation resumes exactly at its end, and adds one state only.
    assert_eq!(f.serve(&[1, 2, 3, 4, 8, 9]), 4);
    assert_eq!(f.resumable(&[1, 2, 3, 4, 8, 9]), [2, 4, 6]);
    // One that leaves it a block before the end falls back to the branching.
    assert_eq!(f.serve(&[1, 2, 3, 10]), 2);
    assert_eq!(f.resumable(&[1, 2, 3, 10]), [2, 3, 4]);
    assert_eq!((f.cache.dump().len(), f.cache.checkpoints()), (10, 7));
    assert_eq!(f.cache.used(), Tokens(10 * 10 + 7 * 20));
}

#[test]
fn a_prefix_of_what_is_cached_gets_a_state_at_its_end() {
    let mut f = Hybrid::new(1000, HYBRID);
    f.serve(&[1, 2, 3]);
    assert_eq!(f.serve(&[1, 2]), 0);
    assert_eq!(f.resumable(&[1, 2, 3]), [2, 3]);
    assert_eq!(f.serve(&[1, 2]), 2);
}

#[test]
fn an_inner_state_goes_alone_and_a_leafs_takes_its_blocks_along() {
    // Room for three blocks and two states, or for five blocks and one.
    let mut f = Hybrid::new(70, HYBRID);
    f.serve(&[1]);
    f.serve(&[1, 2, 3]);
    assert_eq!(
        (f.resumable(&[1, 2, 3]), f.cache.used()),
        (vec![1, 3], Tokens(70))
    );
    // The state after 1 was resumed in the same turn as the one after 3 was saved; of equals the deeper goes first,
    // and both its blocks with it.
    assert_eq!(f.serve(&[4]), 0);
    assert_eq!((f.resumable(&[1, 2, 3]), f.resumable(&[4])), (vec![1], vec![1]));
    assert_eq!(f.cache.used(), Tokens(60));
    // Now 1 is the oldest, and goes for 5.
    f.serve(&[5]);
    assert_eq!((f.resumable(&[1]), f.resumable(&[4])), (vec![], vec![1]));
    // The next turn of 4 resumes; then 4's state is touched with the new one, and 5 is the oldest.
    assert_eq!(f.serve(&[4, 6, 7]), 1);
    assert_eq!((f.resumable(&[4, 6, 7]), f.resumable(&[5])), (vec![1, 3], vec![]));
    // Passed, not resumed from: the state in the middle is the oldest, and goes without its block.
    assert_eq!(f.serve(&[4, 6, 7]), 3);
    f.serve(&[4, 6, 7, 8]);
    assert_eq!(f.resumable(&[4, 6, 7, 8]), [3], "{:?}", f.cache);
}

#[test]
fn a_state_below_which_two_branch_stays_until_one_is_gone() {
    // The shared block, two branches of a block each, three states, and a block to spare.
    let mut f = Hybrid::new(100, HYBRID);
    f.serve(&[1, 2]);
    f.serve(&[1, 3]);
    assert_eq!(
        (f.resumable(&[1, 2]), f.resumable(&[1, 3])),
        (vec![1, 2], vec![1, 2])
    );
    f.serve(&[1, 3]);
    // The oldest goes: the branch that was not used again.
    f.serve(&[4]);
    assert_eq!(
        (f.resumable(&[1, 2]), f.resumable(&[1, 3])),
        (vec![1], vec![1, 2])
    );
    // The branching was saved before the remaining branch was used: its state is the next, its block stays.
    f.serve(&[5]);
    assert_eq!((f.resumable(&[1, 3]), f.resumable(&[5])), (vec![2], vec![1]));
}

#[test]
fn weight_turns_recency_into_flops_per_byte() {
    for (weight, survivor) in [(0.0, [0, 1]), (1e6, [4, 0])] {
        let options = FlopAwareOptions {
            weight: Some(weight),
            ..HYBRID
        };
        let mut f = Hybrid::new(100, options);
        f.serve(&[1, 2, 3, 4]);
        f.serve(&[5]);
        f.serve(&[6]);
        // One of four blocks against short ones that are younger: four blocks save more per byte than one.
        let short = f.resumable(&[5]).len() as u64;
        assert_eq!([f.serve(&[1, 2, 3, 4]), short], survivor);
    }
}

/// Chains of a small tree in which a block's name tells its whole prefix, and sometimes one that lies.
fn chains() -> impl Strategy<Value = Vec<(Vec<u64>, u64)>> {
    let steps = proptest::collection::vec(0u64..3, 0..6);
    let chain = (steps, 0u8..30).prop_map(|(steps, lie)| {
        let mut name = 0;
        let mut chain: Vec<u64> = steps
            .iter()
            .map(|step| {
                name = name * 4 + step + 1;
                name
            })
            .collect();
        if lie == 0 {
            chain.reverse();
        }
        chain
    });
    proptest::collection::vec((chain, 0u64..5), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_hybrid_cache_does_what_its_naive_twin_does(
        chains in chains(), capacity in 0u64..300, state in 0u32..50, weight in 0.0..3.0f64, attention in 0.0..0.1f64,
    ) {
        let state_tokens = f64::from(state);
        let options = FlopAwareOptions { attention, state_tokens, weight: Some(weight) };
        let mut real = HybridBlocks::new(config(capacity), options);
        let mut naive = NaiveHybrid::new(config(capacity), options);
        let mut now = 0;
        for (names, gap) in chains {
            now += gap;
            let chain = hashes(&names);
            let turn = turn(names.first().copied().unwrap_or(0), now, names.len());
            prop_assert_eq!(real.cached(&chain), naive.cached(&chain));
            let before = real.checkpoints();
            real.served(&chain, &turn);
            naive.served(&chain, &turn);
            prop_assert_eq!(real.check(), Ok(()));
            prop_assert!(real.checkpoints() <= before + 2, "at most two are admitted");
            prop_assert_eq!(real.resumable(&chain), naive.resumable(&chain));
            let (mut ours, mut theirs) = (real.dump(), naive.dump());
            ours.sort();
            theirs.sort();
            prop_assert_eq!(ours, theirs);
            prop_assert_eq!(real.used(), naive.used());
        }
    }
}

/// Least recently used.
#[derive(Clone, Debug, Default)]
struct Recency(u64);

impl Score for Recency {
    fn turn(&mut self, _: &Served) {
        self.0 += 1;
    }

    fn value(&self, _: Used) -> f64 {
        self.0 as f64
    }
}

#[test]
fn a_shared_prefix_outlives_its_branches_and_frequent_blocks_rare_ones() {
    let mut cache = ScoredBlocks::new(config(40), Frequency::new(0.0));
    let serve = |cache: &mut ScoredBlocks<Frequency>, names: &[u64]| {
        let chain = hashes(names);
        let cached = cache.cached(&chain).0 / 10;
        cache.served(&chain, &turn(names[0], 0, names.len()));
        assert_eq!(cache.check(), Ok(()));
        cached
    };
    assert_eq!(serve(&mut cache, &[1, 2]), 0);
    assert_eq!(serve(&mut cache, &[1, 3]), 1);
    assert_eq!(serve(&mut cache, &[1, 3]), 2);
    // 2 was used once, as 4 and 5 are, and before them.
    assert_eq!(serve(&mut cache, &[4, 5]), 0);
    assert_eq!(serve(&mut cache, &[1, 3]), 2);
    assert_eq!(serve(&mut cache, &[1, 2]), 1);
    // Of the blocks used once the deeper of [4, 5] was the oldest; now 4, and 2 after it.
    assert_eq!(serve(&mut cache, &[6]), 0);
    assert_eq!((serve(&mut cache, &[4]), serve(&mut cache, &[1, 3])), (0, 2));
}

#[test]
fn et_lru_gives_up_what_cannot_matter_before_what_can() {
    // The last block of each three is within the threshold, and so is worth only its share of the mean.
    let config = CacheConfig {
        xi_tokens: 10.0,
        ..config(60)
    };
    let options = EtLruOptions {
        decay_per_s: Some(0.0),
        learn_hazards: false,
        ..EtLruOptions::default()
    };
    let mut cache = build(&PolicySpec::EtLru(options), config, None).unwrap();
    for chain in [&[1, 2, 3][..], &[4, 5, 6], &[7], &[8]] {
        cache.served(&hashes(chain), &turn(chain[0], 0, chain.len()));
        assert_eq!(cache.check(), Ok(()));
    }
    let cached = |chain: &[u64]| cache.cached(&hashes(chain)).0;
    assert_eq!(
        (cached(&[1, 2, 3]), cached(&[4, 5, 6]), cached(&[8])),
        (20, 20, 10)
    );
}

#[test]
fn a_class_that_returns_keeps_its_blocks_before_one_that_does_not() {
    let mut cache = build(&PolicySpec::WorkloadAware, config(60), None).unwrap();
    let (mut now, mut hits) = (0, 0);
    for round in 0..600u64 {
        // Class 1 returns, with four one-shot prompts of class 0 in between; LRU would evict it every time.
        for (name, class, turn_number) in [(1, 1, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (1, 1, 1)] {
            let conversation = round * 10 + name;
            let chain = hashes(&[conversation * 2, conversation * 2 + 1]);
            hits += u64::from(turn_number == 1 && round > 300 && cache.cached(&chain) == Tokens(20));
            let served = Served {
                class: ClassId(class),
                turn: turn_number,
                ..turn(conversation, now, 2)
            };
            cache.served(&chain, &served);
            assert_eq!(cache.check(), Ok(()));
            now += 20;
        }
    }
    assert!(hits > 290, "{hits}");
}

type Chains = Vec<(Vec<u64>, u64)>;

fn with_turns(chains: Chains) -> impl Iterator<Item = (Vec<PrefixHash>, Served)> {
    let mut now = 0;
    chains.into_iter().map(move |(names, gap)| {
        now += gap;
        let conversation = names.last().copied().unwrap_or(0) % 7;
        let class = ClassId((conversation % 3) as u16);
        let number = (conversation % 4) as u32;
        let served = Served {
            class,
            turn: number,
            ..turn(conversation, now, names.len())
        };
        (hashes(&names), served)
    })
}

fn drive<S: Score + Clone>(score: &S, config: CacheConfig, chains: Chains) -> Result<(), TestCaseError> {
    let mut real = ScoredBlocks::new(config, score.clone());
    let mut naive = NaiveScored::new(config, score.clone());
    for (chain, turn) in with_turns(chains) {
        prop_assert_eq!(real.cached(&chain), naive.cached(&chain));
        real.served(&chain, &turn);
        naive.served(&chain, &turn);
        prop_assert_eq!(real.check(), Ok(()));
        let (mut ours, mut theirs) = (real.dump(), naive.dump());
        ours.sort();
        theirs.sort();
        prop_assert_eq!(ours, theirs);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_score_evicts_as_the_naive_twin_does(chains in chains(), capacity in 0u64..250, xi in 0.0..40.0f64) {
        let config = CacheConfig { xi_tokens: xi, next_prompt: Tokens(15), ..config(capacity) };
        drive(&Recency::default(), config, chains.clone())?;
        drive(&Frequency::new(0.0), config, chains.clone())?;
        drive(&Frequency::new(0.05), config, chains.clone())?;
        drive(&ClassReuse::default(), config, chains.clone())?;
        drive(&Excess::new(&config, EtLruOptions::default()), config, chains)?;
    }

    #[test]
    fn scored_by_recency_it_is_the_lru_of_engines(chains in chains(), capacity in 0u64..250) {
        let mut ours = ScoredBlocks::new(config(capacity), Recency::default());
        let mut theirs = PrefixCache::new(Tokens(capacity));
        // Where names contradict each other the two refuse different ones.
        for (chain, turn) in with_turns(chains).filter(|(chain, _)| chain.is_sorted()) {
            prop_assert_eq!(ours.cached(&chain), theirs.resident_tokens(&chain));
            ours.served(&chain, &turn);
            let pieces: Vec<_> = chain.iter().map(|&hash| Piece { hash, tokens: 10 }).collect();
            theirs.insert(&pieces, Keep::All, &mut Vec::new());
            prop_assert_eq!(ours.used(), theirs.used());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hindsight_evicts_as_a_search_of_the_rest_of_the_trace_would(
        chains in chains(), capacity in 0u64..250, xi in 0.0..60.0f64, capped in any::<bool>(),
    ) {
        let config = CacheConfig { xi_tokens: xi, ..config(capacity) };
        let told: Vec<_> = with_turns(chains.clone()).map(|(chain, turn)| (chain, turn.length.0 + 5)).collect();
        let mut foresight = Foresight::default();
        told.iter().for_each(|(chain, input)| foresight.push(chain, Tokens(*input)));
        let mut real = ScoredBlocks::new(config, Hindsight::new(Arc::new(foresight), config, capped));
        let mut naive = NaiveScored::new(config, NaiveHindsight { config, capped, turns: told, served: 0 });
        for (chain, turn) in with_turns(chains) {
            real.served(&chain, &turn);
            naive.served(&chain, &turn);
            prop_assert_eq!(real.check(), Ok(()));
            prop_assert_eq!(sorted(real.dump()), sorted(naive.dump()));
        }
    }

    #[test]
    fn the_readings_of_t_lru_do_what_their_naive_twin_does(
        chains in chains(), capacity in 0u64..250, xi in 0.0..80.0f64, all in any::<bool>(),
    ) {
        let config = CacheConfig { xi_tokens: xi, next_prompt: Tokens(15), ..config(capacity) };
        let pass = if all { Pass::AllFree } else { Pass::OneEach };
        let (mut real, mut naive) = (TrimmedBlocks::new(config, pass), NaiveTrimmed::new(config, pass));
        for (chain, turn) in with_turns(chains) {
            prop_assert_eq!(real.cached(&chain), naive.cached(&chain));
            real.served(&chain, &turn);
            naive.served(&chain, &turn);
            prop_assert_eq!(real.check(), Ok(()));
            prop_assert_eq!(sorted(real.dump()), sorted(naive.dump()));
        }
    }

    #[test]
    fn the_tier_stack_does_what_its_naive_twin_does(
        chains in chains(), capacity in 0u64..150, xi in 0.0..80.0f64,
        lower in proptest::collection::vec((0u64..120, 1u32..25), 0..3),
    ) {
        let config = CacheConfig { xi_tokens: xi, next_prompt: Tokens(15), ..config(capacity) };
        let tier = |(capacity, unit_tokens)| Tier { capacity: Tokens(capacity), ms_per_token: 0.1, unit_tokens };
        let lower: Vec<_> = lower.into_iter().map(tier).collect();
        let (mut real, mut naive) = (TieredBlocks::new(config, &lower), NaiveTiered::new(config, &lower));
        for (chain, turn) in with_turns(chains) {
            prop_assert_eq!(real.per_tier(&chain), naive.per_tier(&chain));
            let sunk: usize = real.per_tier(&chain)[1..].iter().sum();
            prop_assert!((real.load_time(&chain).0 - sunk as f64).abs() < 1e-9);
            real.served(&chain, &turn);
            naive.served(&chain, &turn);
            prop_assert_eq!(real.check(), Ok(()));
            prop_assert_eq!(sorted(real.dump()), sorted(naive.dump()));
        }
    }

    #[test]
    fn one_tier_without_a_threshold_is_the_lru_of_engines(chains in chains(), capacity in 0u64..250) {
        let mut ours = TieredBlocks::new(config(capacity), &[]);
        let mut theirs = PrefixCache::new(Tokens(capacity));
        for (chain, turn) in with_turns(chains).filter(|(chain, _)| chain.is_sorted()) {
            prop_assert_eq!(ours.cached(&chain), theirs.resident_tokens(&chain));
            ours.served(&chain, &turn);
            let pieces: Vec<_> = chain.iter().map(|&hash| Piece { hash, tokens: 10 }).collect();
            theirs.insert(&pieces, Keep::All, &mut Vec::new());
        }
    }
}

fn sorted(mut blocks: Vec<PrefixHash>) -> Vec<PrefixHash> {
    blocks.sort();
    blocks
}

/// Blocks that some policy with hindsight has to compute at least: a dynamic programme over all prefix-closed caches.
fn fewest(chains: &[Vec<PrefixHash>], capacity: usize) -> usize {
    let mut states: HashMap<BTreeSet<PrefixHash>, usize> = HashMap::from([(BTreeSet::new(), 0)]);
    let parents: HashMap<PrefixHash, PrefixHash> = chains
        .iter()
        .flat_map(|chain| chain.windows(2).map(|pair| (pair[1], pair[0])))
        .collect();
    for chain in chains {
        let mut next: HashMap<BTreeSet<PrefixHash>, usize> = HashMap::new();
        for (state, cost) in states {
            let computed = chain.iter().filter(|hash| !state.contains(hash)).count();
            let mut closed = vec![BTreeSet::new()];
            let all: BTreeSet<_> = state.iter().chain(chain).copied().collect();
            // Names grow with depth: a parent is decided before its children.
            for hash in all {
                let stands = |kept: &BTreeSet<PrefixHash>| {
                    kept.len() < capacity && parents.get(&hash).is_none_or(|parent| kept.contains(parent))
                };
                let grown: Vec<_> = closed.iter().filter(|kept| stands(kept)).cloned().collect();
                closed.extend(grown.into_iter().map(|mut kept| {
                    kept.insert(hash);
                    kept
                }));
            }
            for kept in closed {
                let known = next.entry(kept).or_insert(usize::MAX);
                *known = (cost + computed).min(*known);
            }
        }
        states = next;
    }
    states.into_values().min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_furthest_next_use_computes_the_fewest_blocks(
        steps in proptest::collection::vec(proptest::collection::vec(0u64..2, 1..4), 1..9), capacity in 1usize..6,
    ) {
        let name = |at: &mut u64, step: &u64| {
            *at = *at * 2 + step + 1;
            Some(PrefixHash(*at))
        };
        let chains: Vec<Vec<_>> = steps.iter().map(|steps| steps.iter().scan(0, name).collect()).collect();
        let config = config(10 * capacity as u64);
        let mut foresight = Foresight::default();
        chains.iter().for_each(|chain| foresight.push(chain, Tokens(10 * chain.len() as u64)));
        let mut cache = build(&PolicySpec::Belady, config, Some(&Arc::new(foresight))).unwrap();
        let mut computed = 0;
        for (at, chain) in chains.iter().enumerate() {
            computed += chain.len() - cache.cached(chain).0 as usize / 10;
            cache.served(chain, &turn(0, at as u64, chain.len()));
        }
        prop_assert_eq!(computed, fewest(&chains, capacity));
    }
}
