//! The index under workers' event streams as they arrive in practice: in order per worker, in any order between
//! workers, with duplicates and losses. Compared at every step with its naive twin and with the workers' real contents.

use std::collections::{HashMap, VecDeque};

use crate::ids::{PrefixHash, WorkerId};
use crate::index::naive::NaiveIndex;
use crate::index::{Index, IndexLimits, Reach};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const ROOMY: IndexLimits = IndexLimits { max_bytes: 1 << 28 };
const PROMPT: usize = 12;

#[derive(Clone, Debug)]
enum Event {
    Stored {
        parent: Option<PrefixHash>,
        keys: Vec<PrefixHash>,
    },
    Removed(PrefixHash),
    Cleared,
}

/// A worker with a small cache: conversations over shared prompts grow, and the least recently used one loses its end.
struct Worker {
    id: WorkerId,
    /// Conversations by last use, with the number of held keys, prompt included.
    held: VecDeque<(usize, usize)>,
    stream: VecDeque<(u64, Event)>,
    sent: u64,
}

impl Worker {
    fn emit(&mut self, event: Event) {
        self.stream.push_back((self.sent, event));
        self.sent += 1;
    }

    fn serve(&mut self, rng: &mut SmallRng, chains: &[Vec<PrefixHash>], capacity: usize) {
        let conversation = rng.random_range(0..chains.len());
        let at = self.held.iter().position(|(held, _)| *held == conversation);
        let (_, held) = at
            .and_then(|at| self.held.remove(at))
            .unwrap_or((conversation, 0));
        let to = (held + rng.random_range(0..30))
            .max(PROMPT)
            .min(chains[conversation].len());
        let mut from = held;
        while from < to {
            let end = (from + rng.random_range(1..=16)).min(to);
            let parent = from.checked_sub(1).map(|at| chains[conversation][at]);
            self.emit(Event::Stored {
                parent,
                keys: chains[conversation][from..end].to_vec(),
            });
            from = end;
        }
        self.held.push_back((conversation, to));
        while self.held.iter().map(|(_, held)| held - PROMPT).sum::<usize>() > capacity {
            let Some((conversation, held)) = self.held.front_mut() else {
                break;
            };
            if *held > PROMPT {
                *held -= 1;
                let key = chains[*conversation][*held];
                self.emit(Event::Removed(key));
            } else {
                // The shared prompt stays until the worker is cleared.
                let conversation = self.held.pop_front();
                self.held.extend(conversation);
            }
        }
        if rng.random_bool(0.01) {
            self.held.clear();
            self.emit(Event::Cleared);
        }
    }
}

fn conversations(rng: &mut SmallRng, count: usize) -> Vec<Vec<PrefixHash>> {
    let prompts: Vec<Vec<PrefixHash>> = (0..3)
        .map(|_| (0..PROMPT).map(|_| PrefixHash(rng.random())).collect())
        .collect();
    (0..count)
        .map(|conversation| {
            let mut chain = prompts[conversation % 3].clone();
            chain.extend((0..rng.random_range(20..120)).map(|_| PrefixHash(rng.random())));
            chain
        })
        .collect()
}

struct Pair {
    index: Index,
    twin: NaiveIndex,
    reach: (Reach, Reach),
}

impl Pair {
    fn apply(&mut self, worker: WorkerId, event: &Event) {
        let (index, twin) = (&mut self.index, &mut self.twin);
        match event {
            Event::Stored { parent, keys } => {
                let ours = index.store_after(worker, *parent, keys);
                assert_eq!(ours, twin.store_after(worker, *parent, keys));
            }
            Event::Removed(key) => assert_eq!(index.remove(worker, *key), twin.remove(worker, *key)),
            Event::Cleared => assert_eq!(index.forget(worker), twin.forget(worker)),
        }
        assert_eq!(index.entries_of(worker), twin.entries_of(worker));
        assert_eq!(
            (
                index.stats().keys,
                index.stats().entries,
                index.stats().unknown_parents,
                index.stats().unknown_removals
            ),
            (
                twin.stats().keys,
                twin.stats().entries,
                twin.stats().unknown_parents,
                twin.stats().unknown_removals
            ),
        );
    }

    fn compare(&mut self, chain: &[PrefixHash]) {
        self.index.lookup(chain, &mut self.reach.0);
        self.twin.lookup(chain, &mut self.reach.1);
        assert_eq!(self.reach.0, self.reach.1);
        assert!(self.reach.0.is_complete());
    }
}

/// Delivers all events; `lose` and `repeat` are the shares of lost and duplicate events. A gap in a worker's numbers is
/// detected at its next event, or at the heartbeat after its last; the worker is then forgotten.
fn deliver(seed: u64, workers: usize, lose: f64, repeat: f64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let chains = conversations(&mut rng, 25);
    let mut fleet: Vec<Worker> = (0..workers)
        .map(|slot| Worker {
            id: WorkerId(slot as u32 * 9),
            held: VecDeque::new(),
            stream: VecDeque::new(),
            sent: 0,
        })
        .collect();
    for _ in 0..workers * 25 {
        let worker = rng.random_range(0..workers);
        fleet[worker].serve(&mut rng, &chains, 150);
    }
    let mut pair = Pair {
        index: Index::new(ROOMY),
        twin: NaiveIndex::new(ROOMY),
        reach: Default::default(),
    };
    let mut expected: HashMap<WorkerId, u64> = HashMap::new();
    let mut step = 0;
    while let Some(worker) = pick(&mut rng, &fleet) {
        let Some((number, event)) = fleet[worker].stream.pop_front() else {
            break;
        };
        let id = fleet[worker].id;
        if rng.random_bool(lose) {
            continue;
        }
        let next = expected.insert(id, number + 1).unwrap_or(0);
        if next != number {
            pair.apply(id, &Event::Cleared);
        }
        pair.apply(id, &event);
        if rng.random_bool(repeat) {
            pair.apply(id, &event);
        }
        pair.compare(&chains[rng.random_range(0..chains.len())]);
        step += 1;
        if step % 64 == 0 {
            assert_eq!(pair.index.broken(), None, "step {step}");
        }
    }
    for worker in &fleet {
        if expected.get(&worker.id).copied().unwrap_or(0) != worker.sent {
            pair.apply(worker.id, &Event::Cleared);
        }
    }
    assert_eq!(pair.index.broken(), None);
    for (conversation, chain) in chains.iter().enumerate() {
        pair.compare(chain);
        for worker in &fleet {
            let held = worker
                .held
                .iter()
                .find(|(held, _)| *held == conversation)
                .map_or(0, |(_, held)| *held);
            let said = pair.reach.0.of(worker.id) as usize;
            if lose > 0.0 {
                assert!(said <= held.max(PROMPT), "{said} of {held}");
            } else if held > 0 {
                assert_eq!(said, held, "{:?} in conversation {conversation}", worker.id);
            }
        }
    }
}

fn pick(rng: &mut SmallRng, fleet: &[Worker]) -> Option<usize> {
    let waiting: Vec<usize> = (0..fleet.len())
        .filter(|slot| !fleet[*slot].stream.is_empty())
        .collect();
    (!waiting.is_empty()).then(|| waiting[rng.random_range(0..waiting.len())])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn events_in_any_order_between_workers_and_repeated_leave_exactly_what_is_held(seed in any::<u64>(), workers in 1usize..12) {
        deliver(seed, workers, 0.0, 0.1);
    }

    #[test]
    fn after_gaps_the_index_never_says_more_than_is_held(seed in any::<u64>(), workers in 1usize..12, lose in 0.001f64..0.2) {
        deliver(seed, workers, lose, 0.1);
    }
}
