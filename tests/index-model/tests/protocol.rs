//! The read and write protocol, under random schedules that may switch threads at every access to shared memory.

use std::sync::atomic::{AtomicU32, Ordering};

use index_model::ids::{PrefixHash, WorkerId};
use index_model::index::{Index, IndexLimits, Reach, StoreError};
use shuttle::current::TaskId;
use shuttle::scheduler::{RandomScheduler, Schedule, Scheduler, Task};

const SCHEDULES: usize = 2000;

fn keys(path: &[u64]) -> Vec<PrefixHash> {
    path.iter().map(|key| PrefixHash(*key)).collect()
}

/// Runs `write` beside two readers of `chain`, each of which checks all its answers.
fn explore(
    prepare: fn(&mut Index),
    write: fn(&mut Index),
    chain: &'static [u64],
    check: fn(&Reach, &mut u32),
) {
    explore_times(SCHEDULES, prepare, write, move || keys(chain), check);
}

/// The same for what takes many operations to get ready.
fn explore_few(
    prepare: fn(&mut Index),
    write: fn(&mut Index),
    chain: fn() -> Vec<PrefixHash>,
    check: fn(&Reach, &mut u32),
) {
    explore_times(SCHEDULES / 50, prepare, write, chain, check);
}

fn explore_times(
    schedules: usize,
    prepare: fn(&mut Index),
    write: fn(&mut Index),
    chain: impl Fn() -> Vec<PrefixHash> + Copy + Send + Sync + 'static,
    check: fn(&Reach, &mut u32),
) {
    shuttle::check_random(
        move || {
            let mut index = Index::new(IndexLimits {
                max_bytes: IndexLimits::MIN_BYTES,
            });
            prepare(&mut index);
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let reader = index.reader();
                    shuttle::thread::spawn(move || {
                        let (chain, mut reach, mut seen) = (chain(), Reach::new(), 0);
                        for _ in 0..3 {
                            reader.lookup(&chain, &mut reach);
                            check(&reach, &mut seen);
                        }
                    })
                })
                .collect();
            write(&mut index);
            for reader in readers {
                reader.join().unwrap();
            }
            assert_eq!(index.broken(), None);
        },
        schedules,
    );
}

#[test]
fn a_copy_is_read_whole_while_its_run_is_split_and_merged() {
    explore(
        |index| {
            index.store(WorkerId(0), &keys(&[1, 2, 3, 4, 5, 6])).unwrap();
        },
        |index| {
            index.store(WorkerId(1), &keys(&[1, 2, 7])).unwrap();
            index.store(WorkerId(2), &keys(&[1, 2, 3, 4, 8])).unwrap();
            index.forget(WorkerId(1));
            index.forget(WorkerId(2));
        },
        &[1, 2, 3, 4, 5, 6],
        |reach, _| assert_eq!(reach.of(WorkerId(0)), 6),
    );
}

#[test]
fn a_growing_copy_never_seems_to_shrink() {
    explore(
        |index| {
            index.store(WorkerId(0), &keys(&[1])).unwrap();
        },
        |index| {
            for (parent, key) in [(1, 2), (2, 3), (3, 4)] {
                index
                    .store_after(WorkerId(0), Some(PrefixHash(parent)), &keys(&[key]))
                    .unwrap();
                index.store(WorkerId(3), &keys(&[1, 2, 100 + key])).unwrap();
            }
        },
        &[1, 2, 3, 4],
        |reach, seen| {
            assert!(reach.of(WorkerId(0)) >= *seen && reach.of(WorkerId(0)) > 0);
            *seen = reach.of(WorkerId(0));
        },
    );
}

#[test]
fn a_shrinking_copy_never_seems_to_grow_and_others_stay() {
    explore(
        |index| {
            index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
            index.store(WorkerId(1), &keys(&[1, 2, 3, 4])).unwrap();
            index.store(WorkerId(1), &keys(&[1, 2, 9])).unwrap();
        },
        |index| {
            index.remove(WorkerId(1), PrefixHash(4));
            index.remove(WorkerId(1), PrefixHash(2));
            index.store(WorkerId(5), &keys(&[21, 22])).unwrap();
            index.remove(WorkerId(1), PrefixHash(1));
        },
        &[1, 2, 3, 4],
        |reach, lost| {
            assert_eq!(reach.of(WorkerId(0)), 4);
            assert!(4 - reach.of(WorkerId(1)) >= *lost);
            *lost = 4 - reach.of(WorkerId(1));
        },
    );
}

#[test]
fn an_answer_never_mixes_two_runs_that_used_the_same_memory() {
    explore(
        |index| {
            index.store(WorkerId(0), &keys(&[1, 2, 3])).unwrap();
        },
        |index| {
            index.forget(WorkerId(0));
            index.store(WorkerId(4), &keys(&[31, 32, 33, 34])).unwrap();
            index.forget(WorkerId(4));
            index.store(WorkerId(5), &keys(&[1, 42, 43])).unwrap();
        },
        &[1, 2, 3],
        |reach, _| {
            assert!([0, 1, 2, 3].contains(&reach.of(WorkerId(0))));
            assert_eq!(reach.of(WorkerId(4)), 0);
            assert!(reach.of(WorkerId(5)) <= 1);
        },
    );
}

/// A chain of its own for each conversation.
fn conversation(number: u64, len: u64) -> Vec<PrefixHash> {
    (1..=len).map(|at| PrefixHash(number << 20 | at)).collect()
}

#[test]
fn a_worker_that_goes_takes_long_runs_along_and_its_slot_is_used_again_at_once() {
    explore(
        |index| {
            let long: Vec<PrefixHash> = (1..=40).map(PrefixHash).collect();
            index.store(WorkerId(0), &long[..20]).unwrap();
            index.store(WorkerId(70), &long).unwrap();
            index.store(WorkerId(70), &keys(&[1, 2, 3, 90])).unwrap();
        },
        |index| {
            // Leaves twenty keys behind the run's end to later writes, which grow that very run.
            assert_eq!(index.forget(WorkerId(70)), 41);
            index.store(WorkerId(70), &keys(&[1, 2, 3, 90, 91])).unwrap();
            let long: Vec<PrefixHash> = (1..=30).map(PrefixHash).collect();
            index.store(WorkerId(70), &long).unwrap();
        },
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
        ],
        |reach, _| {
            assert!(reach.is_complete());
            assert_eq!(reach.of(WorkerId(0)), 20);
            assert!([0, 3, 20, 22].contains(&reach.of(WorkerId(70))), "{reach:?}");
        },
    );
}

#[test]
fn holders_come_and_go_by_the_dozen_and_steady_ones_are_read_right() {
    explore(
        |index| {
            index
                .store(WorkerId(0), &keys(&[1, 2, 3, 4, 5, 6, 7, 8]))
                .unwrap();
            index.store(WorkerId(200), &keys(&[1, 2, 3, 4, 5])).unwrap();
        },
        |index| {
            // Past the partial holders that fit the record, past those that a run may have: overflows and splits.
            for worker in 1..8 {
                let held: Vec<PrefixHash> = (1..=u64::from(worker)).map(PrefixHash).collect();
                index.store(WorkerId(worker * 64), &held).unwrap();
            }
            (1..8).for_each(|worker| {
                index.forget(WorkerId(worker * 64));
            });
        },
        &[1, 2, 3, 4, 5, 6, 7, 8],
        |reach, _| {
            assert_eq!(reach.of(WorkerId(0)), 8);
            assert_eq!(reach.of(WorkerId(200)), 5);
        },
    );
}

#[test]
fn what_is_in_use_is_read_right_while_the_budget_evicts_and_the_log_is_cleaned() {
    explore_few(
        |index| {
            index.store(WorkerId(0), &conversation(0, 12)).unwrap();
            (1..60).for_each(|number| {
                index.store(WorkerId(1), &conversation(number, 40)).unwrap();
                index.touch(&conversation(0, 12));
            });
        },
        |index| {
            for number in 60..66 {
                let stored = index.store(WorkerId(2), &conversation(number, 40));
                assert!(!matches!(stored, Err(StoreError::Conflict { .. })));
                index.touch(&conversation(0, 12));
            }
            assert!(index.stats().evicted_keys > 0, "{:?}", index.stats());
            assert!(
                index.stats().bytes <= IndexLimits::MIN_BYTES / 100 * 105,
                "{:?}",
                index.stats()
            );
        },
        || conversation(0, 12),
        |reach, _| assert_eq!((reach.of(WorkerId(0)), reach.deepest()), (12, 12)),
    );
}

/// A random schedule in which the writer, which is the first task, is stopped at some step and goes on only when nobody
/// else can.
struct Stopped {
    random: RandomScheduler,
    is_stopped: bool,
}

impl Scheduler for Stopped {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.is_stopped = false;
        self.random.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let others: Vec<&Task> = runnable
            .iter()
            .filter(|task| usize::from(task.id()) != 0)
            .copied()
            .collect();
        self.is_stopped |= !others.is_empty() && self.random.next_u64().is_multiple_of(100);
        let among = if self.is_stopped && !others.is_empty() {
            &others
        } else {
            runnable
        };
        self.random.next_task(among, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}

#[test]
fn a_lookup_never_waits_for_a_writer_that_was_stopped_in_the_middle_of_a_change() {
    static CUT_SHORT: AtomicU32 = AtomicU32::new(0);
    const LOOKUPS: usize = 12;
    let scheduler = Stopped {
        random: RandomScheduler::new(SCHEDULES),
        is_stopped: false,
    };
    let mut config = shuttle::Config::new();
    // A reader that waits for the writer would never be through: it is the only one that runs.
    config.max_steps = shuttle::MaxSteps::FailAfter(1_000_000);
    shuttle::Runner::new(scheduler, config).run(|| {
        let mut index = Index::new(IndexLimits {
            max_bytes: IndexLimits::MIN_BYTES,
        });
        index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
        for first in [11, 12, 13] {
            index.store(WorkerId(1), &keys(&[first, 20 + first])).unwrap();
            index
                .store(WorkerId(1), &keys(&[1, 2, 3, 4, first + 30]))
                .unwrap();
        }
        let reader = index.reader();
        let reading = shuttle::thread::spawn(move || {
            let mut reach = Reach::new();
            // Often enough to meet the writer wherever it is stopped; once it was met, it stays where it is.
            for _ in 0..LOOKUPS {
                // Nobody's prompt, and one that goes on where nobody's does: both end in a miss.
                reader.lookup(&keys(&[99]), &mut reach);
                assert_eq!(reach.deepest(), 0);
                reader.lookup(&keys(&[1, 2, 3, 4, 99]), &mut reach);
                assert!(reach.of(WorkerId(0)) == 4 || !reach.is_complete());
                if !reach.is_complete() {
                    CUT_SHORT.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        });
        index.forget(WorkerId(1));
        reading.join().unwrap();
        assert_eq!(index.broken(), None);
    });
    assert!(
        CUT_SHORT.load(Ordering::Relaxed) > 0,
        "some schedules stop the writer where the reader notices"
    );
}
