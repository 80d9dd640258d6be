//! The byte budget under any updates: at most 5 % over, no false entries, and the last store is present.

use crate::ids::{PrefixHash, WorkerId};
use crate::index::naive::NaiveIndex;
use crate::index::{Index, IndexLimits, Reach};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const TIGHT: IndexLimits = IndexLimits {
    max_bytes: IndexLimits::MIN_BYTES,
};
const ROOMY: IndexLimits = IndexLimits { max_bytes: 1 << 32 };

/// Returns chains that share prefixes with earlier ones, more than the budget holds.
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

    /// Indexes that grew until the router was killed: <https://github.com/vllm-project/production-stack/issues/711>,
    /// <https://github.com/smg-project/smg/issues/2137>, <https://github.com/ai-dynamo/dynamo/issues/4429>,
    /// <https://github.com/ai-dynamo/dynamo/issues/10774>.
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

/// Stores new prompts of `keys` keys each, more than fit. Returns the most bytes after any store, the keys held at the
/// end, and the most held at any time.
fn fill(max_bytes: u64, keys: usize) -> (u64, u64, u64) {
    let mut index = Index::new(IndexLimits { max_bytes });
    let mut rng = SmallRng::seed_from_u64(keys as u64);
    let (mut most, mut best) = (0, 0);
    for _ in 0..3 * max_bytes / 2 / (200 + 24 * keys as u64) {
        let prompt: Vec<_> = (0..keys).map(|_| PrefixHash(rng.random())).collect();
        assert_eq!(index.store(WorkerId(0), &prompt), Ok(keys as u64));
        let stats = index.stats();
        most = most.max(stats.bytes);
        best = best.max(stats.keys);
    }
    assert_eq!(index.broken(), None);
    (most, index.stats().keys, best)
}

#[test]
fn no_budget_dies_of_a_table_that_doubles() {
    for keys in [1, 4, 16] {
        for budget in [4_200_000, 4_900_000, 5_650_000, 6_600_000, 8_000_000] {
            let (most, held, best) = fill(budget, keys);
            let case = format!("{keys} keys a prompt, {budget} bytes: {most} bytes, {held} of {best} keys");
            assert!(most <= budget / 100 * 105, "{case}");
            assert!(held >= best / 10 * 6, "{case}");
            // The cost of a prompt: a record, a block, its keys in the locator, and its share of the head tables.
            assert!(
                held * (360 + 28 * keys as u64) >= budget * keys as u64 * 6 / 10,
                "{case}"
            );
        }
    }
}

/// Stores new prompts of `keys` keys each, more than fit, and returns the number of keys then held.
fn turn_over(index: &mut Index, rng: &mut SmallRng, keys: usize) -> u64 {
    for _ in 0..2 * TIGHT.max_bytes / (200 + 24 * keys as u64) {
        let prompt: Vec<_> = (0..keys).map(|_| PrefixHash(rng.random())).collect();
        assert_eq!(index.store(WorkerId(0), &prompt), Ok(keys as u64));
        assert!(index.stats().bytes <= TIGHT.max_bytes / 100 * 105);
    }
    index.stats().keys
}

#[test]
fn what_two_key_prompts_took_for_records_and_heads_long_ones_cannot_have_but_no_turnover_takes_more() {
    // Readers may access both at any time, so their memory is never reused for keys. The worst case is prompts of only
    // one or two chunks.
    let mut rng = SmallRng::seed_from_u64(9);
    let fresh = turn_over(&mut Index::new(TIGHT), &mut rng, 200);
    let mut index = Index::new(TIGHT);
    let short = turn_over(&mut index, &mut rng, 2);
    for round in 0..2 {
        let long = turn_over(&mut index, &mut rng, 200);
        assert!(long * 5 >= fresh, "round {round}: {long} of {fresh}");
        let again = turn_over(&mut index, &mut rng, 2);
        assert!(again * 10 >= short * 8, "round {round}: {again} of {short}");
    }
    assert_eq!(index.broken(), None);
}
