//! The byte budget under any evidence: never more than 5 % over, nothing invented, what was just stored is there.

use policy::ids::{PrefixHash, WorkerId};
use policy::index::naive::NaiveIndex;
use policy::index::{Index, IndexLimits, Reach};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const TIGHT: IndexLimits = IndexLimits {
    max_bytes: IndexLimits::MIN_BYTES,
};
const ROOMY: IndexLimits = IndexLimits { max_bytes: 1 << 32 };

/// Chains that share prefixes with chains before them, more than the budget holds.
fn forest(rng: &mut SmallRng, chains: usize, longest: usize) -> Vec<Vec<PrefixHash>> {
    let mut forest: Vec<Vec<PrefixHash>> = Vec::new();
    for _ in 0..chains {
        let mut chain = Vec::new();
        if !forest.is_empty() && rng.random_bool(0.5) {
            let other = &forest[rng.random_range(0..forest.len())];
            chain.extend_from_slice(&other[..rng.random_range(0..=other.len().min(longest))]);
        }
        chain.extend((0..rng.random_range(1..=longest)).map(|_| PrefixHash(rng.random())));
        forest.push(chain);
    }
    forest
}

fn drive(seed: u64, longest: usize, workers: u32, forgetful: f64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    // More than fits.
    let chains = forest(&mut rng, 250_000 / longest, longest);
    let (mut index, mut twin) = (Index::new(TIGHT), NaiveIndex::new(ROOMY));
    let (mut ours, mut theirs) = (Reach::new(), Reach::new());
    let steps = 400_000 / longest;
    for step in 0..steps {
        let worker = WorkerId(rng.random_range(0..workers));
        let chain = &chains[rng.random_range(0..chains.len())];
        if rng.random_bool(forgetful) {
            index.forget(worker);
            twin.forget(worker);
        } else if rng.random_bool(0.2) {
            let key = chain[rng.random_range(0..chain.len())];
            index.remove(worker, key);
            twin.remove(worker, key);
        } else {
            assert!(index.store(worker, chain).is_ok());
            assert!(twin.store(worker, chain).is_ok());
            index.lookup(chain, &mut ours);
            assert_eq!(
                ours.of(worker) as usize,
                chain.len(),
                "what was just stored is there"
            );
        }
        let question = &chains[rng.random_range(0..chains.len())];
        index.lookup(question, &mut ours);
        twin.lookup(question, &mut theirs);
        assert!(
            ours.holders().all(|(worker, depth)| depth <= theirs.of(worker)),
            "nothing is invented"
        );
        let bytes = index.stats().bytes;
        assert!(
            bytes <= TIGHT.max_bytes / 100 * 105,
            "{bytes} bytes at step {step}"
        );
        if step % (steps / 4) == 0 {
            assert_eq!(index.broken(), None, "step {step}");
        }
    }
    assert_eq!(index.broken(), None);
    index.stats().evicted_keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]

    #[test]
    fn the_budget_holds_whatever_is_stored_removed_and_forgotten(
        seed in any::<u64>(),
        longest in prop::sample::select(vec![40usize, 200, 1500]),
        workers in prop::sample::select(vec![1u32, 64, 1500]),
        forgetful in prop::sample::select(vec![0.001, 0.02]),
    ) {
        drive(seed, longest, workers, forgetful);
    }
}

#[test]
fn short_prompts_of_many_workers_stay_within_the_budget() {
    assert!(drive(1, 4, 3000, 0.001) > 0);
}
