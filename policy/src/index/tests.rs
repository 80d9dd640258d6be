use super::*;

mod twin;
mod twin_budget;
mod twin_events;

const ROOMY: IndexLimits = IndexLimits { max_bytes: 1 << 24 };

fn keys(path: &[u64]) -> Vec<PrefixHash> {
    path.iter().map(|key| PrefixHash(*key)).collect()
}

fn depths(index: &Index, path: &[u64]) -> Vec<(u32, u32)> {
    let mut reach = Reach::new();
    index.lookup(&keys(path), &mut reach);
    reach.holders().map(|(worker, depth)| (worker.0, depth)).collect()
}

#[test]
fn each_worker_reaches_as_far_as_it_stored() {
    let mut index = Index::new(ROOMY);
    assert_eq!(index.store(WorkerId(0), &keys(&[1, 2, 3, 4])), Ok(4));
    assert_eq!(index.store(WorkerId(70), &keys(&[1, 2])), Ok(2));
    assert_eq!(index.store(WorkerId(3), &keys(&[1, 2, 9])), Ok(3));
    assert_eq!(depths(&index, &[1, 2, 3, 4, 5]), [(0, 4), (3, 2), (70, 2)]);
    assert_eq!(depths(&index, &[1, 2, 9]), [(0, 2), (3, 3), (70, 2)]);
    assert_eq!(depths(&index, &[2]), []);
    assert_eq!((index.stats().keys, index.stats().entries), (5, 9));
}

#[test]
fn the_prefixes_used_last_come_first_with_who_holds_how_much_of_them() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
    index.store(WorkerId(70), &keys(&[1, 2, 3])).unwrap();
    index.store(WorkerId(3), &keys(&[1, 2, 9])).unwrap();
    let copy = |worker, keys, last| Copy {
        worker: WorkerId(worker),
        keys,
        last: PrefixHash(last),
    };
    let (all, complete) = index.newest(10, None, 16);
    let shown: Vec<_> = all
        .iter()
        .map(|prefix| (prefix.last.0, prefix.keys, prefix.forks, prefix.holders))
        .collect();
    // Using a run uses everything above it.
    assert_eq!(
        (shown, complete),
        (vec![(2, 2, 2, 3), (9, 3, 0, 1), (4, 4, 0, 2)], true)
    );
    assert_eq!(all[2].copies, [copy(0, 4, 4), copy(70, 3, 3)]);
    assert_eq!(index.newest(10, None, 1).0[2].copies.len(), 1);
    let (its, _) = index.newest(10, Some(WorkerId(70)), 16);
    assert_eq!(
        its.iter().map(|prefix| prefix.copies.clone()).collect::<Vec<_>>(),
        [vec![copy(70, 2, 2)], vec![copy(70, 3, 3)]]
    );
    assert_eq!(index.newest(1, None, 16).0.len(), 1);
    assert!(!index.newest(1, None, 16).1);
    index.forget(WorkerId(3));
    index.forget(WorkerId(0));
    index.forget(WorkerId(70));
    assert_eq!(index.newest(10, None, 16).0, []);
}

#[test]
fn a_removed_key_takes_what_is_below_it_along() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
    index.store(WorkerId(0), &keys(&[1, 2, 7, 8])).unwrap();
    index.store(WorkerId(1), &keys(&[1, 2, 3])).unwrap();
    assert_eq!(index.remove(WorkerId(0), PrefixHash(2)), 5);
    assert_eq!(depths(&index, &[1, 2, 3, 4]), [(0, 1), (1, 3)]);
    assert_eq!(index.remove(WorkerId(0), PrefixHash(3)), 0);
    assert_eq!(index.stats().unknown_removals, 1);
    assert_eq!(index.stats().keys, 3);
}

#[test]
fn events_hang_keys_below_a_parent_the_worker_holds() {
    let mut index = Index::new(ROOMY);
    index.store_after(WorkerId(0), None, &keys(&[1, 2])).unwrap();
    index
        .store_after(WorkerId(0), Some(PrefixHash(2)), &keys(&[3]))
        .unwrap();
    let orphan = index.store_after(WorkerId(1), Some(PrefixHash(2)), &keys(&[3]));
    assert_eq!(
        orphan,
        Err(StoreError::UnknownParent {
            worker: WorkerId(1),
            parent: PrefixHash(2)
        })
    );
    assert_eq!(depths(&index, &[1, 2, 3]), [(0, 3)]);
}

#[test]
fn a_forgotten_worker_leaves_nothing_behind() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3])).unwrap();
    index.store(WorkerId(1), &keys(&[1, 2])).unwrap();
    index.store(WorkerId(0), &keys(&[11, 12])).unwrap();
    assert_eq!(index.forget(WorkerId(0)), 5);
    assert_eq!(index.entries_of(WorkerId(0)), 0);
    assert_eq!(depths(&index, &[1, 2, 3]), [(1, 2)]);
    assert_eq!((index.stats().keys, index.stats().entries), (2, 2));
}

#[test]
fn a_key_given_a_second_parent_is_refused() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3])).unwrap();
    let twisted = index.store(WorkerId(1), &keys(&[1, 3]));
    assert_eq!(twisted, Err(StoreError::Conflict { key: PrefixHash(3) }));
    assert_eq!(depths(&index, &[1, 2, 3]), [(0, 3), (1, 1)]);
}

#[test]
fn a_stray_worker_number_sizes_no_array() {
    let mut index = Index::new(ROOMY);
    let stray = WorkerId(u32::MAX);
    assert_eq!(
        index.store(stray, &keys(&[1])),
        Err(StoreError::NoSuchWorker { worker: stray })
    );
}

#[test]
fn the_byte_budget_evicts_the_least_recently_used_leaves() {
    let mut index = Index::new(IndexLimits {
        max_bytes: IndexLimits::MIN_BYTES,
    });
    let chain = |conversation: u64| keys(&[1, 1000 + conversation * 2, 1001 + conversation * 2]);
    for conversation in 0..100_000 {
        index
            .store(WorkerId(conversation as u32 % 5), &chain(conversation))
            .unwrap();
        index.touch(&chain(0));
    }
    let stats = index.stats();
    assert!(stats.bytes <= IndexLimits::MIN_BYTES / 100 * 105, "{stats:?}");
    assert!(stats.evicted_keys > 0);
    let mut reach = Reach::new();
    index.lookup(&chain(0), &mut reach);
    assert_eq!(reach.deepest(), 3, "what is used stays");
    index.lookup(&chain(99_999), &mut reach);
    assert_eq!(reach.deepest(), 3, "what is new stays");
    index.lookup(&chain(1), &mut reach);
    assert_eq!(reach.deepest(), 1, "what is old went, its used parent did not");
}

#[test]
fn a_forgotten_workers_keys_are_gone_at_once_and_their_memory_soon() {
    let mut index = Index::new(ROOMY);
    let chain = |first: u64| (first..first + 300).map(PrefixHash).collect::<Vec<_>>();
    for conversation in 0..40 {
        index.store(WorkerId(9), &chain(conversation * 1000 + 1)).unwrap();
    }
    index.store(WorkerId(2), &chain(1)[..100]).unwrap();
    assert_eq!(index.forget(WorkerId(9)), 12_000);
    let stats = index.stats();
    assert_eq!((stats.keys, stats.entries, stats.owed_keys), (100, 100, 11_900));
    assert_eq!(index.broken(), None);
    let mut reach = Reach::new();
    index.lookup(&chain(1), &mut reach);
    assert_eq!((reach.of(WorkerId(9)), reach.of(WorkerId(2))), (0, 100));
    assert!(!index.holds(WorkerId(9), PrefixHash(5001)));
    assert_eq!(index.remove(WorkerId(9), PrefixHash(5001)), 0);

    // The slot is free at once, and keys yet to be reclaimed may return under other parents.
    assert_eq!(index.store(WorkerId(9), &keys(&[2_000_007, 5001, 5000])), Ok(3));
    assert_eq!(
        index.store(WorkerId(2), &chain(1)),
        Ok(200),
        "the cut run grows again"
    );
    assert_eq!(index.broken(), None);
    for write in 0..400 {
        index.store(WorkerId(3), &keys(&[1_000_000 + write])).unwrap();
    }
    assert_eq!(index.stats().owed_keys, 0);
    assert_eq!(index.stats().keys, 703);
    assert_eq!(index.broken(), None);
}

#[test]
fn what_removals_left_is_reclaimed_before_anything_is_evicted() {
    let mut index = Index::new(IndexLimits {
        max_bytes: IndexLimits::MIN_BYTES,
    });
    let chain = |conversation: u64| {
        let first = conversation << 20;
        (first + 1..=first + 1000).map(PrefixHash).collect::<Vec<_>>()
    };
    (0..100).for_each(|conversation| {
        index.store(WorkerId(1), &chain(conversation)).unwrap();
    });
    assert_eq!(index.stats().evicted_keys, 0);
    for round in 1..6 {
        index.forget(WorkerId(1));
        (0..100).for_each(|conversation| {
            index
                .store(WorkerId(1), &chain(round * 100 + conversation))
                .unwrap();
        });
    }
    let stats = index.stats();
    assert_eq!((stats.evicted_keys, stats.keys), (0, 100_000), "{stats:?}");
    assert!(stats.bytes <= IndexLimits::MIN_BYTES / 100 * 105, "{stats:?}");
    assert_eq!(index.tidy(u64::MAX), 0);
    assert_eq!(index.broken(), None);
}

#[test]
fn an_answer_given_while_the_writer_is_stopped_says_so() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
    index.store(WorkerId(1), &keys(&[1, 2, 9])).unwrap();
    let mut reach = Reach::new();
    index.lookup(&keys(&[1, 2, 3, 4]), &mut reach);
    assert!(reach.is_complete());
    // Simulates a writer thread suspended while it changes the run of keys 3 and 4.
    let run = index.writer.shared.branches.known(3).unwrap();
    index.writer.shared.words.line(run).open();
    index.lookup(&keys(&[1, 2, 3, 4]), &mut reach);
    assert!(!reach.is_complete());
    assert_eq!(
        (reach.of(WorkerId(0)), reach.of(WorkerId(1))),
        (2, 2),
        "as far as it got"
    );
    index.lookup(&keys(&[1, 2, 9]), &mut reach);
    assert!(reach.is_complete(), "another chain is not concerned");
    index.writer.shared.words.line(run).close();
    index.lookup(&keys(&[1, 2, 3, 4]), &mut reach);
    assert!(reach.is_complete());
    assert_eq!(reach.of(WorkerId(0)), 4);
}

#[test]
fn outgrown_tables_count_among_the_bytes() {
    let heads = heads::Heads::new();
    let smallest = heads.bytes();
    for tables in [3, 7, 15] {
        heads.grow();
        assert_eq!(heads.bytes(), tables * smallest);
    }
}

#[test]
fn a_lookup_of_what_is_not_there_does_not_wait_for_a_writer_that_is_stopped_in_a_removal() {
    let mut index = Index::new(ROOMY);
    index.store(WorkerId(0), &keys(&[1, 2, 3, 4])).unwrap();
    let shared = Arc::clone(&index.writer.shared);
    let mut reach = Reach::new();
    for (heads, unknown) in [
        (&shared.roots, [7].as_slice()),
        (&shared.branches, &[1, 2, 3, 4, 5]),
    ] {
        heads.toggle_moving();
        assert_eq!(heads.find(7), Err(heads::Moving));
        index.lookup(&keys(unknown), &mut reach);
        assert!(!reach.is_complete(), "the next run may be among those that move");
        assert_eq!(reach.deepest() as usize, unknown.len() - 1, "as far as it got");
        index.lookup(&keys(&[1, 2, 3, 4]), &mut reach);
        assert!(reach.is_complete(), "a hit needs no table that is at rest");
        heads.toggle_moving();
        index.lookup(&keys(unknown), &mut reach);
        assert!(reach.is_complete());
    }
}

#[test]
fn models_and_salts_do_not_see_one_another() {
    let mut index = Index::new(ROOMY);
    // The same tokens under other models and salts have other roots, so their keys differ from the first on.
    let tokens: Vec<u32> = (0..640).collect();
    let size = std::num::NonZeroU32::new(16).unwrap();
    let chains: Vec<Vec<PrefixHash>> = [("a", None), ("b", None), ("a", Some("x")), ("a", Some("y"))]
        .into_iter()
        .map(|(model, salt)| {
            let mut chain = crate::fingerprint::Chain::new();
            let root = crate::fingerprint::token_root(model, salt);
            crate::fingerprint::push_token_blocks(root, &tokens, size, &mut chain);
            chain.hashes().to_vec()
        })
        .collect();
    for (slot, chain) in (0..).zip(&chains) {
        index.store(WorkerId(slot), &chain[..40 - slot as usize]).unwrap();
    }
    let mut reach = Reach::new();
    for (slot, chain) in (0..).zip(&chains) {
        index.lookup(chain, &mut reach);
        let holders: Vec<_> = reach.holders().collect();
        assert_eq!(holders, [(WorkerId(slot), 40 - slot)]);
    }
    index.forget(WorkerId(0));
    index.lookup(&chains[2], &mut reach);
    assert_eq!(reach.of(WorkerId(2)), 38);
}

#[test]
fn workers_are_as_many_as_there_are() {
    let mut index = Index::new(ROOMY);
    let chain: Vec<PrefixHash> = (1..=64).map(PrefixHash).collect();
    let reach_of = |worker: u32| 1 + worker % 64;
    for worker in 0..3000 {
        let held = &chain[..reach_of(worker) as usize];
        assert_eq!(
            index.store(WorkerId(worker), held),
            Ok(u64::from(reach_of(worker)))
        );
    }
    assert_eq!(index.broken(), None);
    let mut reach = Reach::new();
    index.lookup(&chain, &mut reach);
    assert!((0..3000).all(|worker| reach.of(WorkerId(worker)) == reach_of(worker)));
    (0..3000).filter(|worker| worker % 2 == 0).for_each(|worker| {
        index.forget(WorkerId(worker));
    });
    index.lookup(&chain, &mut reach);
    assert!((0..3000).all(|worker| reach.of(WorkerId(worker)) == reach_of(worker) * (worker % 2)));
    assert_eq!(index.broken(), None);
}
