//! One writer, several readers: each answer must be true at some moment during the lookup.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, Reach};

fn chain(conversation: u64, len: u64) -> Vec<PrefixHash> {
    let key = |at: u64| {
        if at < 32 {
            at + 1
        } else {
            (conversation + 1) * 100_000 + at
        }
    };
    (0..len)
        .map(|at| PrefixHash(key(at).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        .collect()
}

/// Worker 0 always holds conversation 0 in full, worker 1 exactly its first 100 keys, while everything around them is
/// split, merged, moved and evicted.
#[test]
fn what_never_changes_is_read_right_through_every_change_around_it() {
    let mut index = Index::new(IndexLimits {
        max_bytes: IndexLimits::MIN_BYTES,
    });
    let steady = chain(0, 300);
    index.store(WorkerId(0), &steady).unwrap();
    index.store(WorkerId(1), &steady[..100]).unwrap();
    let (reader, done, reads) = (index.reader(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reach = Reach::new();
                while !done.load(Ordering::Relaxed) {
                    reader.lookup(&steady, &mut reach);
                    // Readers do not wait indefinitely for a writer suspended within a change.
                    if !reach.is_complete() {
                        continue;
                    }
                    assert_eq!((reach.of(WorkerId(0)), reach.of(WorkerId(1))), (300, 100));
                    assert_eq!(reach.deepest(), 300);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut round = 0u64;
        while round < 8_000 || reads.load(Ordering::Relaxed) < 10_000 {
            let worker = WorkerId(2 + (round % 70) as u32);
            index
                .store(worker, &chain(1 + round % 5000, 64 + round % 400))
                .unwrap();
            // Holders of the runs being read change, at varying depths, and branch off them.
            index
                .store(worker, &steady[..1 + (round * 7 % 299) as usize])
                .unwrap();
            let mut branch = steady[..1 + (round * 13 % 250) as usize].to_vec();
            branch.extend((0..5).map(|at| PrefixHash(round << 20 | at | 1 << 60)));
            index.store(worker, &branch).unwrap();
            index.remove(worker, branch[branch.len() - 5]);
            index.remove(worker, steady[32 + (round * 11 % 200) as usize]);
            if round.is_multiple_of(997) {
                index.forget(worker);
            }
            index.touch(&steady);
            round += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(index.broken(), None);
    assert!(
        index.stats().evicted_keys > 0,
        "the budget was tight: {:?}",
        index.stats()
    );
}

/// A worker's copy only grows, so the depth that readers see must never decrease.
#[test]
fn a_growing_conversation_never_seems_to_shrink() {
    let mut index = Index::new(IndexLimits::default());
    let whole = chain(3, 4000);
    let (reader, done) = (index.reader(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut reach, mut seen) = (Reach::new(), 0);
            while !done.load(Ordering::Relaxed) {
                reader.lookup(&whole, &mut reach);
                if !reach.is_complete() {
                    continue;
                }
                let now = reach.of(WorkerId(5));
                assert!(now >= seen, "{now} after {seen}");
                seen = now;
            }
        });
        for at in 0..whole.len() {
            let parent = at.checked_sub(1).map(|at| whole[at]);
            index.store_after(WorkerId(5), parent, &whole[at..=at]).unwrap();
            let mut branch = whole[..=at].to_vec();
            branch.push(PrefixHash(at as u64 | 1 << 61));
            index.store(WorkerId(6), &branch).unwrap();
            index.forget(WorkerId(6));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(index.broken(), None);
}
