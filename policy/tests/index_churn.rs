//! Churn test: over repeated turnover, neither memory nor the number of runs may grow.

use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

struct Copy {
    worker: WorkerId,
    chain: Vec<PrefixHash>,
}

/// Stores `count` conversations over shared prompts, each held by one or two workers. The oldest copies are removed
/// block by block from the end, as engines report it.
fn turn_over(
    index: &mut Index,
    held: &mut std::collections::VecDeque<Copy>,
    rng: &mut SmallRng,
    entries: usize,
) {
    let mut stored = 0;
    while stored < entries {
        let prompt = rng.random_range(0..8u64);
        let mut chain: Vec<_> = (1..=32).map(|at| PrefixHash(prompt << 8 | at)).collect();
        chain.extend((0..rng.random_range(32..300)).map(|_| PrefixHash(rng.random())));
        let mut holders = vec![WorkerId(rng.random_range(0..64))];
        if rng.random_bool(0.3) {
            holders.push(WorkerId(rng.random_range(64..90)));
        }
        for worker in holders {
            let mut end = 32;
            while end < chain.len() {
                end = (end + rng.random_range(1..40)).min(chain.len());
                assert!(index.store(worker, &chain[..end]).is_ok());
            }
            stored += chain.len() - 32;
            held.push_back(Copy {
                worker,
                chain: chain.clone(),
            });
        }
        while held.iter().map(|copy| copy.chain.len() - 32).sum::<usize>() > entries {
            let Some(copy) = held.pop_front() else { break };
            for key in copy.chain[32..].iter().rev() {
                index.remove(copy.worker, *key);
            }
        }
    }
}

/// An index that kept what its workers had evicted: <https://github.com/ai-dynamo/dynamo/issues/11678>.
#[test]
fn eight_turnovers_leave_no_garbage() {
    let mut rng = SmallRng::seed_from_u64(5);
    let mut index = Index::new(IndexLimits { max_bytes: 16 << 20 });
    let mut held = std::collections::VecDeque::new();
    let entries = 60_000;
    turn_over(&mut index, &mut held, &mut rng, entries);
    let fresh = index.stats();
    for _ in 0..8 {
        turn_over(&mut index, &mut held, &mut rng, entries);
    }
    let (worn, per_entry) = (index.stats(), |stats: policy::index::IndexStats| {
        stats.bytes as f64 / stats.entries as f64
    });
    assert_eq!(index.broken(), None);
    assert_eq!(worn.evicted_keys, 0);
    assert!(
        worn.runs as f64 <= fresh.runs as f64 * 1.15,
        "{fresh:?} to {worn:?}"
    );
    assert!(
        per_entry(worn) <= per_entry(fresh) * 1.05,
        "{} to {}",
        per_entry(fresh),
        per_entry(worn)
    );
    for copy in &held {
        assert!(index.holds(copy.worker, copy.chain[copy.chain.len() - 1]));
    }
    (0..90).for_each(|worker| {
        index.forget(WorkerId(worker));
    });
    assert_eq!(
        (index.stats().keys, index.stats().entries, index.stats().runs),
        (0, 0, 0)
    );
}
