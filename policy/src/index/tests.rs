use super::*;

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
