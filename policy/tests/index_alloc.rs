//! A lookup does not allocate, as counted by the global allocator.

#![allow(
    unsafe_code,
    reason = "a global allocator cannot be written without; it only counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use policy::fingerprint::{ChainBuilder, Field};
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, Reach};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is forwarded to the system allocator; only a thread-local counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: forwards the caller's guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwards the caller's guarantees.
        unsafe { System.dealloc(at, layout) }
    }
}

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn a_warm_lookup_allocates_nothing_however_many_hold_the_chain() {
    let mut index = Index::new(IndexLimits::default());
    let chain: Vec<PrefixHash> = (1..=2000)
        .map(|key: u64| PrefixHash(key.wrapping_mul(0x9E37_79B9)))
        .collect();
    for worker in 0..500 {
        index
            .store(WorkerId(worker), &chain[..1 + (worker as usize * 37) % 2000])
            .unwrap();
    }
    index.store(WorkerId(9), &chain).unwrap();
    let reader = index.reader();
    let mut reach = Reach::new();
    reader.lookup(&chain, &mut reach);
    assert_eq!(reach.holders().count(), 500);
    let spent = allocations_of(|| {
        for end in (0..=chain.len()).step_by(7) {
            reader.lookup(&chain[..end], &mut reach);
        }
        reader.lookup(&[PrefixHash(1), PrefixHash(2)], &mut reach);
    });
    assert_eq!(spent, 0);
}

#[test]
fn a_warm_fingerprint_allocates_nothing() {
    let text = "All happy families are alike. ".repeat(4000);
    let mut builder = ChainBuilder::new("model", Some("salt"));
    let hash = |builder: &mut ChainBuilder| {
        builder.restart("model", Some("salt"));
        for role in ["system", "user", "assistant", "user"] {
            builder.begin_message(role);
            builder.field(Field::Text);
            text.as_bytes().chunks(1000).for_each(|piece| builder.push(piece));
            builder.end_message();
        }
    };
    hash(&mut builder);
    assert_eq!(allocations_of(|| hash(&mut builder)), 0);
}
