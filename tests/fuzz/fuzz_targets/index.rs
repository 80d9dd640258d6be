//! Any evidence, true or not: no panic, no broken invariant, no worker said to hold more than was asked.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, Reach};

#[derive(Arbitrary, Debug)]
enum Evidence {
    Store(u8, Vec<u8>),
    StoreAfter(u8, u8, Vec<u8>),
    Remove(u8, u8),
    Forget(u8),
    Touch(Vec<u8>),
    Lookup(Vec<u8>),
}

fn keys(path: &[u8]) -> Vec<PrefixHash> {
    path.iter().map(|key| PrefixHash(u64::from(*key))).collect()
}

fuzz_target!(|evidence: Vec<Evidence>| {
    let mut index = Index::new(IndexLimits { max_bytes: IndexLimits::MIN_BYTES });
    let mut reach = Reach::new();
    for piece in evidence {
        match piece {
            Evidence::Store(worker, path) => {
                let _ = index.store(WorkerId(worker.into()), &keys(&path));
            }
            Evidence::StoreAfter(worker, parent, path) => {
                let _ = index.store_after(WorkerId(worker.into()), Some(PrefixHash(parent.into())), &keys(&path));
            }
            Evidence::Remove(worker, key) => {
                let _ = index.remove(WorkerId(worker.into()), PrefixHash(key.into()));
            }
            Evidence::Forget(worker) => {
                let _ = index.forget(WorkerId(worker.into()));
            }
            Evidence::Touch(path) => index.touch(&keys(&path)),
            Evidence::Lookup(path) => {
                index.lookup(&keys(&path), &mut reach);
                assert!(reach.deepest() as usize <= path.len());
                assert!(reach.holders().all(|(_, depth)| depth <= reach.deepest()));
            }
        }
        assert_eq!(index.broken(), None);
    }
});
