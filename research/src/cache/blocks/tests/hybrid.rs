use proptest::prelude::*;

use super::*;
use crate::cache::blocks::naive::NaiveHybrid;
use crate::cache::flop_aware::FlopAwareOptions;

/// Options under which a state is worth two blocks.
const HYBRID: FlopAwareOptions = FlopAwareOptions {
    attention: 0.0,
    state_tokens: 20.0,
    weight: Some(0.0),
    windows: (1, 1),
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
    // Nothing is known to be shared: one state, at the end.
    assert_eq!(f.serve(&[1, 2, 3, 4]), 0);
    assert_eq!(f.resumable(&[1, 2, 3, 4]), [4]);
    // Blocks 1 and 2 are resident but no state was saved after them: all is computed, and that state is saved in
    // passing.
    assert_eq!(f.serve(&[1, 2, 5]), 0);
    assert_eq!(f.resumable(&[1, 2, 5]), [2, 3]);
    assert_eq!(f.serve(&[1, 2, 6, 7]), 2);
    // The next turn of the first conversation resumes exactly at its end, and adds one state only.
    assert_eq!(f.serve(&[1, 2, 3, 4, 8, 9]), 4);
    assert_eq!(f.resumable(&[1, 2, 3, 4, 8, 9]), [2, 4, 6]);
    // A branch one block before the end falls back to the state at the branching.
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
    // The state after 1 was resumed in the turn that saved the one after 3. Within a turn the deeper goes first, with
    // both its blocks.
    assert_eq!(f.serve(&[4]), 0);
    assert_eq!((f.resumable(&[1, 2, 3]), f.resumable(&[4])), (vec![1], vec![1]));
    assert_eq!(f.cache.used(), Tokens(60));
    // Now 1 is the oldest, and is evicted for 5.
    f.serve(&[5]);
    assert_eq!((f.resumable(&[1]), f.resumable(&[4])), (vec![], vec![1]));
    // The next turn of 4 resumes; its state is touched with the new one, and 5 is the oldest.
    assert_eq!(f.serve(&[4, 6, 7]), 1);
    assert_eq!((f.resumable(&[4, 6, 7]), f.resumable(&[5])), (vec![1, 3], vec![]));
    // Passed, not resumed from: the state in the middle is the oldest, and is evicted without its block.
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
    // The oldest is evicted: the branch that was not used again.
    f.serve(&[4]);
    assert_eq!(
        (f.resumable(&[1, 2]), f.resumable(&[1, 3])),
        (vec![1], vec![1, 2])
    );
    // The branching was saved before the remaining branch was used: its state is next, its block stays.
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
        // One of four blocks against younger short ones: four blocks save more per byte than one.
        let short = f.resumable(&[5]).len() as u64;
        assert_eq!([f.serve(&[1, 2, 3, 4]), short], survivor);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_hybrid_cache_does_what_its_naive_twin_does(
        chains in chains(), capacity in 0u64..300, state in 0u32..50, attention in 0.0..0.1f64,
        weight in proptest::option::of(0.0..3.0f64), windows in (1usize..6, 6usize..20),
    ) {
        let state_tokens = f64::from(state);
        let options = FlopAwareOptions { attention, state_tokens, weight, windows };
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
            prop_assert_eq!(real.weight(), naive.weight());
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
