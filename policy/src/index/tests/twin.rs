//! The index and its naive twin under the same updates: same answers, same counts, no broken invariant.

use crate::ids::{PrefixHash, WorkerId};
use crate::index::naive::NaiveIndex;
use crate::index::{Index, IndexLimits, Reach};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const ROOMY: IndexLimits = IndexLimits { max_bytes: 1 << 28 };

/// A forest of chains that share prefixes, as in conversations over shared prompts with retries.
struct Universe {
    chains: Vec<Vec<PrefixHash>>,
}

impl Universe {
    fn new(rng: &mut SmallRng, chains: usize, longest: usize) -> Self {
        let mut universe = Self { chains: Vec::new() };
        for _ in 0..chains {
            let mut chain = Vec::new();
            if !universe.chains.is_empty() && rng.random_bool(0.7) {
                let other = &universe.chains[rng.random_range(0..universe.chains.len())];
                chain.extend_from_slice(&other[..rng.random_range(0..=other.len())]);
            }
            for _ in 0..rng.random_range(1..=longest) {
                chain.push(PrefixHash(rng.random()));
            }
            universe.chains.push(chain);
        }
        universe
    }

    fn chain(&self, pick: usize) -> &[PrefixHash] {
        &self.chains[pick % self.chains.len()]
    }
}

/// One update or query, given by numbers that are reduced to valid ranges.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: u8,
    worker: u16,
    chain: usize,
    from: usize,
    to: usize,
}

impl Op {
    fn random(rng: &mut SmallRng, workers: u16) -> Self {
        Self {
            kind: rng.random(),
            worker: rng.random_range(0..workers),
            chain: rng.random_range(0..usize::MAX),
            from: rng.random_range(0..usize::MAX),
            to: rng.random_range(0..usize::MAX),
        }
    }
}

struct Pair {
    index: Index,
    twin: NaiveIndex,
    reach: (Reach, Reach),
    wrong: u64,
}

impl Pair {
    fn new() -> Self {
        Self {
            index: Index::new(ROOMY),
            twin: NaiveIndex::new(ROOMY),
            reach: Default::default(),
            wrong: 0,
        }
    }

    /// Applies an operation to both and compares the results.
    fn apply(&mut self, universe: &Universe, op: Op, workers: u16) {
        // Slots beyond the first 64 exercise the overflow of the bitset.
        let worker = WorkerId(u32::from(op.worker % workers) * 7);
        let chain = universe.chain(op.chain);
        let to = op.to % (chain.len() + 1);
        let from = op.from % (to + 1);
        let (index, twin) = (&mut self.index, &mut self.twin);
        let same = match op.kind {
            0..=79 => index.store(worker, &chain[..to]) == twin.store(worker, &chain[..to]),
            80..=119 => {
                let parent = from.checked_sub(1).map(|parent| chain[parent]);
                index.store_after(worker, parent, &chain[from..to])
                    == twin.store_after(worker, parent, &chain[from..to])
            }
            120..=179 => {
                let key = chain[op.from % chain.len()];
                index.remove(worker, key) == twin.remove(worker, key)
            }
            // As engines remove: from the end of the copy.
            180..=189 => chain.iter().rev().take(1 + to / 4).all(|key| {
                index.holds(worker, *key) == twin.holds(worker, *key)
                    && index.remove(worker, *key) == twin.remove(worker, *key)
            }),
            // The same in one call, sometimes with another chain's key among them.
            190..=199 => {
                let mut keys: Vec<PrefixHash> = chain.iter().rev().take(1 + to / 2).copied().collect();
                if op.from.is_multiple_of(3) {
                    keys.insert(op.from % keys.len(), universe.chain(op.to)[0]);
                }
                index.remove_all(worker, &keys);
                for &key in &keys {
                    twin.remove(worker, key);
                }
                keys.iter()
                    .all(|&key| index.holds(worker, key) == twin.holds(worker, key))
            }
            200..=201 => index.forget(worker) == twin.forget(worker),
            // A key that cannot follow.
            202..=204 => {
                let twisted = [chain[0], chain[chain.len() - 1]];
                index.store(worker, &twisted) == twin.store(worker, &twisted)
            }
            _ => {
                index.touch(chain);
                twin.touch(chain);
                true
            }
        };
        let question = universe.chain(op.from);
        index.lookup(question, &mut self.reach.0);
        twin.lookup(question, &mut self.reach.1);
        let agree = same
            && self.reach.0 == self.reach.1
            && index.entries_of(worker) == twin.entries_of(worker)
            && (index.stats().keys, index.stats().entries) == (twin.stats().keys, twin.stats().entries);
        self.wrong += u64::from(!agree);
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (
        any::<u8>(),
        any::<u16>(),
        any::<usize>(),
        any::<usize>(),
        any::<usize>(),
    );
    let op = op.prop_map(|(kind, worker, chain, from, to)| Op {
        kind,
        worker,
        chain,
        from,
        to,
    });
    prop::collection::vec(op, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn index_and_twin_agree_on_any_evidence(
        seed in any::<u64>(),
        chains in 1usize..40,
        longest in 1usize..60,
        workers in 1u16..40,
        ops in ops(),
    ) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let universe = Universe::new(&mut rng, chains, longest);
        let mut pair = Pair::new();
        for (step, op) in ops.into_iter().enumerate() {
            pair.apply(&universe, op, workers);
            prop_assert_eq!(pair.wrong, 0, "step {}: {:?}, {:?} against {:?}", step, op, pair.reach.0, pair.reach.1);
            prop_assert_eq!(pair.index.broken(), None, "step {}: {:?}", step, op);
        }
    }
}

fn drive(operations: u64, seed: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut pair = Pair::new();
    let mut universe = Universe::new(&mut rng, 60, 40);
    for step in 0..operations {
        if step % 50_000 == 0 {
            universe = Universe::new(&mut rng, 60, 40);
        }
        let op = Op::random(&mut rng, 24);
        pair.apply(&universe, op, 24);
    }
    assert_eq!(pair.index.broken(), None);
    pair.wrong
}

#[test]
fn a_hundred_thousand_random_operations_give_no_wrong_score() {
    assert_eq!(drive(100_000, 7), 0);
}

#[test]
#[ignore = "two minutes in release: cargo test --release -p tailroute-policy --lib index::tests::twin:: -- --ignored"]
fn ten_million_random_operations_give_no_wrong_score() {
    assert_eq!(drive(10_000_000, 11), 0);
}

#[test]
fn a_tight_budget_evicts_only_whole_ends_and_never_invents() {
    let mut rng = SmallRng::seed_from_u64(3);
    let limits = IndexLimits {
        max_bytes: IndexLimits::MIN_BYTES,
    };
    let mut index = Index::new(limits);
    let mut twin = NaiveIndex::new(ROOMY);
    let universe = Universe::new(&mut rng, 3000, 200);
    let (mut ours, mut theirs) = (Reach::new(), Reach::new());
    for step in 0..6_000 {
        let worker = WorkerId(rng.random_range(0..80));
        let chain = universe.chain(rng.random_range(0..usize::MAX));
        if rng.random_bool(0.1) {
            let key = chain[rng.random_range(0..chain.len())];
            index.remove(worker, key);
            twin.remove(worker, key);
        } else {
            index.store(worker, chain).unwrap();
            twin.store(worker, chain).unwrap();
            index.lookup(chain, &mut ours);
            assert_eq!(
                ours.of(worker) as usize,
                chain.len(),
                "what was just stored is there"
            );
        }
        let question = universe.chain(rng.random_range(0..usize::MAX));
        index.lookup(question, &mut ours);
        twin.lookup(question, &mut theirs);
        assert!(
            ours.holders().all(|(worker, depth)| depth <= theirs.of(worker)),
            "nothing is invented"
        );
        let bytes = index.stats().bytes;
        assert!(
            bytes <= limits.max_bytes + limits.max_bytes / 20,
            "{bytes} bytes at step {step}"
        );
        if step % 500 == 0 {
            assert_eq!(index.broken(), None);
        }
    }
    let stats = index.stats();
    assert!(
        stats.evicted_keys > 0 && stats.evicted_entries >= stats.evicted_keys,
        "{stats:?}"
    );
}
