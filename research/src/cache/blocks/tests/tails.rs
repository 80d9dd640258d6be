use proptest::prelude::*;

use super::*;
use crate::cache::blocks::naive::{NaiveTiered, NaiveTrimmed};
use crate::cache::tiers::Tier;
use policy::cache::{Keep, Piece, PrefixCache};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

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
