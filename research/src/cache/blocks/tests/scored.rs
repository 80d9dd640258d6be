use proptest::prelude::*;

use super::*;
use crate::cache::blocks::naive::NaiveScored;
use crate::cache::blocks::scored::{Score, Used};
use crate::cache::et_lru::{EtLruOptions, Hazards};
use policy::cache::{Keep, Piece, PrefixCache};

#[derive(Clone, Debug, Default)]
pub(super) struct Recency(u64);

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
    // Of the blocks used once the deeper of [4, 5] was the oldest; now 4, then 2.
    assert_eq!(serve(&mut cache, &[6]), 0);
    assert_eq!((serve(&mut cache, &[4]), serve(&mut cache, &[1, 3])), (0, 2));
}

#[test]
fn et_lru_gives_up_what_cannot_matter_before_what_can() {
    // The last block of each three is within the threshold, and so only has its share of the mean.
    let config = CacheConfig {
        xi_tokens: 10.0,
        ..config(60)
    };
    let options = EtLruOptions {
        decay_per_s: Some(0.0),
        hazards: Hazards::Equal,
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
        drive(&Excess::new(&config, EtLruOptions::default()), config, chains.clone())?;
        let by_class = EtLruOptions { hazards: Hazards::TurnClass, ..EtLruOptions::default() };
        drive(&Excess::new(&config, by_class), config, chains)?;
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
