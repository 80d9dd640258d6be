use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::cache::blocks::naive::{NaiveHindsight, NaiveScored};

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
}

/// Returns the fewest blocks that a policy with hindsight has to compute: a dynamic programme over all prefix-closed
/// caches.
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
            // Names grow with depth, so a parent is decided before its children.
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
