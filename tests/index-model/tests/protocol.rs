//! The read and write protocol, under random schedules that may switch threads at every access to shared memory.

use index_model::ids::{PrefixHash, WorkerId};
use index_model::index::{Index, IndexLimits, Reach};

const SCHEDULES: usize = 300;

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
    shuttle::check_random(
        move || {
            let mut index = Index::new(IndexLimits { max_bytes: IndexLimits::MIN_BYTES });
            prepare(&mut index);
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let reader = index.reader();
                    shuttle::thread::spawn(move || {
                        let (chain, mut reach, mut seen) = (keys(chain), Reach::new(), 0);
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
        SCHEDULES,
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
                index.store_after(WorkerId(0), Some(PrefixHash(parent)), &keys(&[key])).unwrap();
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
