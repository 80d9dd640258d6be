use proptest::prelude::*;

use super::naive::{NaiveCache, NaiveLease};
use super::*;

fn piece(hash: u64, tokens: u32) -> Piece {
    Piece {
        hash: PrefixHash(hash),
        tokens,
    }
}

fn chain(names: &[u64]) -> Vec<Piece> {
    names.iter().map(|&name| piece(name, 1)).collect()
}

fn hashes(names: &[u64]) -> Vec<PrefixHash> {
    names.iter().map(|&name| PrefixHash(name)).collect()
}

fn names(order: &[PrefixHash]) -> Vec<u64> {
    order.iter().map(|hash| hash.0).collect()
}

struct Fixture {
    cache: PrefixCache,
    changes: Vec<Change>,
}

impl Fixture {
    fn new(capacity: u64) -> Self {
        Self {
            cache: PrefixCache::new(Tokens(capacity)),
            changes: Vec::new(),
        }
    }

    fn turn(&mut self, pieces: &[u64], keep: Keep) {
        self.cache.insert(&chain(pieces), keep, &mut self.changes);
    }

    fn order(&self) -> Vec<u64> {
        names(&self.cache.eviction_order())
    }
}

const fn first(tokens: u64) -> Keep {
    Keep::First(Tokens(tokens))
}

#[test]
fn a_conversation_is_evicted_from_its_end() {
    let mut f = Fixture::new(4);
    f.turn(&[1, 2, 3], Keep::All);
    assert_eq!(f.order(), [3, 2, 1]);
    f.changes.clear();
    f.turn(&[11, 12, 13], Keep::All);
    assert_eq!(f.order(), [1, 13, 12, 11]);
    assert_eq!(f.cache.resident(&hashes(&[1, 2, 3])), 1);
    assert_eq!(
        f.changes,
        [
            Change::Stored {
                hash: PrefixHash(11),
                parent: None
            },
            Change::Removed { hash: PrefixHash(3) },
            Change::Stored {
                hash: PrefixHash(12),
                parent: Some(PrefixHash(11))
            },
            Change::Removed { hash: PrefixHash(2) },
            Change::Stored {
                hash: PrefixHash(13),
                parent: Some(PrefixHash(12))
            },
        ]
    );
}

#[test]
fn blank_space_is_used_before_anything_marked_goes() {
    let mut f = Fixture::new(6);
    f.turn(&[1, 2, 3], first(1));
    f.turn(&[11, 12, 13], Keep::All);
    assert_eq!(f.cache.resident(&hashes(&[1, 2, 3])), 3);
    f.turn(&[21], Keep::All);
    assert_eq!(f.order(), [2, 1, 13, 12, 11, 21]);
}

#[test]
fn the_oldest_marked_conversation_goes_first_although_another_was_used_less_recently() {
    let mut f = Fixture::new(9);
    f.turn(&[1, 2, 3], Keep::All);
    f.turn(&[11, 12, 13], first(1));
    f.turn(&[21, 22, 23], first(2));
    assert_eq!(f.order(), [13, 12, 23, 3, 2, 1, 11, 22, 21]);
    assert_eq!(f.cache.evict_first(), Tokens(3));
}

#[test]
fn a_hit_clears_the_mark() {
    let mut f = Fixture::new(9);
    f.turn(&[1, 2, 3], first(0));
    f.turn(&[1, 2], Keep::All);
    assert_eq!(f.order(), [3, 2, 1]);
    assert_eq!(f.cache.evict_first(), Tokens(1));
}

#[test]
fn the_last_release_decides_the_mark_of_a_shared_block() {
    let mut f = Fixture::new(9);
    let ours = f.cache.acquire(&chain(&[1, 2, 3]), &mut f.changes);
    let theirs = f.cache.acquire(&chain(&[1, 2, 4]), &mut f.changes);
    assert_eq!(theirs.hits(), 2);
    f.cache.release(ours, first(0), &mut f.changes);
    assert_eq!(
        f.cache.evict_first(),
        Tokens(1),
        "only the block that nobody else holds"
    );
    f.cache.release(theirs, first(1), &mut f.changes);
    assert_eq!(f.order(), [3, 4, 2, 1]);
    assert_eq!(f.cache.evict_first(), Tokens(3));
}

#[test]
fn a_marked_node_waits_for_its_unmarked_child() {
    let mut f = Fixture::new(9);
    f.turn(&[1, 2, 3], Keep::All);
    f.turn(&[1, 2, 4], first(1));
    // 2 is marked, but its child 3 is not.
    assert_eq!(f.order(), [4, 3, 2, 1]);
    assert_eq!(f.cache.evict_first(), Tokens(1));
    f.cache.mark_evict_first([PrefixHash(3)]);
    assert_eq!(f.order(), [4, 3, 2, 1]);
    assert_eq!(f.cache.evict_first(), Tokens(3), "2 followed its last child");
}

#[test]
fn a_chain_shares_what_leads_to_pieces_of_others() {
    let mut cache = PrefixCache::new(Tokens(20));
    for names in [&[1, 2, 3, 4][..], &[1, 2, 5]] {
        cache.insert(&chain(names), Keep::All, &mut Vec::new());
    }
    for (names, shared) in [
        (&[1, 2, 3, 4, 6][..], 2),
        (&[1, 2, 3], 3),
        (&[1, 2, 5], 2),
        (&[1, 7], 1),
        (&[7], 0),
    ] {
        assert_eq!(cache.shared(&hashes(names)), shared, "{names:?}");
    }
}

#[test]
fn an_out_of_band_trim_may_name_its_tail_in_any_order() {
    for tail in [[2, 3, 4], [4, 3, 2], [3, 2, 4]] {
        let mut f = Fixture::new(9);
        f.turn(&[1, 2, 3, 4], Keep::All);
        assert_eq!(f.cache.mark_evict_first(hashes(&tail)), 3);
        assert_eq!(f.cache.evict_first(), Tokens(3));
        assert_eq!(f.order(), [4, 3, 2, 1]);
        assert_eq!(f.cache.mark_evict_first(hashes(&tail)), 0, "idempotent");
    }
}

#[test]
fn what_is_pinned_is_never_evicted_and_a_lease_is_cut_where_room_ends() {
    let mut f = Fixture::new(4);
    let held = f.cache.acquire(&chain(&[1, 2, 3]), &mut f.changes);
    let mut other = f.cache.acquire(&chain(&[11, 12]), &mut f.changes);
    assert_eq!((other.len(), other.is_cut()), (1, true));
    assert_eq!(f.cache.extend(&mut other, &chain(&[13]), &mut f.changes), 0);
    f.cache.release(held, Keep::All, &mut f.changes);
    f.cache.release(other, Keep::All, &mut f.changes);
    assert_eq!(f.order(), [3, 2, 1, 11]);
}

#[test]
fn decode_grows_a_lease_at_the_expense_of_others() {
    let mut f = Fixture::new(4);
    f.turn(&[1, 2], Keep::All);
    let mut lease = f.cache.acquire(&chain(&[11, 12]), &mut f.changes);
    assert_eq!(f.cache.extend(&mut lease, &chain(&[13]), &mut f.changes), 1);
    f.cache.release(lease, Keep::All, &mut f.changes);
    assert_eq!(f.order(), [1, 13, 12, 11]);
}

/// Uses a three times, b once and c twice. They were stored in the order a, b, c and last used in the order b, a, c.
fn used(order: Order) -> Vec<u64> {
    let mut f = Fixture::new(9);
    f.cache.set_order(order);
    for names in [[1, 2], [1, 2], [11, 12], [21, 22], [1, 2], [21, 22]] {
        f.turn(&names, Keep::All);
    }
    f.order()
}

#[test]
fn each_order_takes_from_the_ends_of_chains_by_its_own_number() {
    let (a, b, c) = ([2, 1], [12, 11], [22, 21]);
    let orders = [
        (Order::Lru, [b, a, c]),
        (Order::Lfu, [b, c, a]),
        (Order::Slru, [b, a, c]),
        (Order::Fifo, [a, b, c]),
        (Order::Mru, [c, a, b]),
        (Order::Filo, [c, b, a]),
    ];
    for (order, expected) in orders {
        assert_eq!(used(order), expected.concat(), "{order:?}");
        assert_eq!(Order::named(order.as_str()), Some(order));
    }
}

#[test]
fn what_is_marked_goes_before_any_order_and_a_clear_keeps_the_order() {
    let mut f = Fixture::new(9);
    f.cache.set_order(Order::Filo);
    f.turn(&[1, 2, 3], first(2));
    f.turn(&[11, 12], Keep::All);
    assert_eq!(f.order(), [3, 12, 11, 2, 1]);
    f.cache.clear(&mut f.changes);
    assert_eq!(f.cache.order(), Order::Filo);
}

#[test]
fn removing_a_block_takes_what_hangs_below_it() {
    let mut f = Fixture::new(9);
    f.turn(&[1, 2, 3], Keep::All);
    f.turn(&[1, 2, 4], Keep::All);
    assert_eq!(f.cache.remove(PrefixHash(2), &mut f.changes), 3);
    assert_eq!(f.order(), [1]);
    assert_eq!(f.cache.remove(PrefixHash(2), &mut f.changes), 0);
}

#[test]
fn a_lease_from_before_a_clear_holds_nothing() {
    let mut f = Fixture::new(9);
    let mut lease = f.cache.acquire(&chain(&[1, 2]), &mut f.changes);
    f.cache.clear(&mut f.changes);
    f.turn(&[21], Keep::All);
    assert_eq!(f.cache.extend(&mut lease, &chain(&[3]), &mut f.changes), 0);
    f.cache.release(lease, Keep::All, &mut f.changes);
    assert_eq!(f.order(), [21]);
    assert_eq!(f.cache.pinned(), Tokens::ZERO);
}

#[test]
fn what_is_older_than_a_piece_goes_and_its_own_conversation_stays() {
    let mut f = Fixture::new(20);
    f.turn(&[1, 2, 3], Keep::All);
    f.turn(&[11, 12], first(1));
    f.turn(&[1, 2, 4], Keep::All);
    f.turn(&[21], first(0));
    let held = f.cache.acquire(&chain(&[1, 2, 3]), &mut f.changes);
    let of = |f: &Fixture, name| f.cache.standing(PrefixHash(name)).unwrap();
    let (marked, newest) = (of(&f, 21), of(&f, 4));
    assert_eq!((marked.marked, newest.marked), (Some(2), None));
    assert_eq!(f.cache.drop_older(marked, &mut f.changes), 1);
    assert_eq!(f.order(), [21, 11, 4], "only what was marked before");
    assert_eq!(f.cache.drop_older(newest, &mut f.changes), 1);
    assert_eq!(f.order(), [21, 4]);
    f.cache.release(held, Keep::All, &mut f.changes);
    assert_eq!(f.order(), [21, 4, 3, 2, 1]);
}

#[test]
fn a_chain_that_repeats_a_hash_is_cut_there() {
    let mut f = Fixture::new(9);
    assert_eq!(
        f.cache.insert(&chain(&[1, 2, 1, 3]), Keep::All, &mut f.changes),
        2
    );
    assert_eq!(
        f.cache.resident(&hashes(&[2])),
        0,
        "2 is resident, but not as a root"
    );
}

#[test]
fn weights_are_tokens_and_budgets_round_up_to_pieces() {
    let mut f = Fixture::new(100);
    f.cache.insert(
        &[piece(1, 10), piece(2, 30), piece(3, 5)],
        first(11),
        &mut f.changes,
    );
    assert_eq!(f.cache.evict_first(), Tokens(5));
    assert_eq!(f.cache.resident_tokens(&hashes(&[1, 2, 9])), Tokens(40));
    f.cache.set_capacity(Tokens(41), &mut f.changes);
    assert_eq!((f.cache.used(), f.order()), (Tokens(40), vec![2, 1]));
}

#[test]
fn a_long_chain_that_is_held_is_listed_deepest_first_in_one_walk() {
    let mut f = Fixture::new(1 << 20);
    let names: Vec<u64> = (1..50_000).collect();
    let held = f.cache.acquire(&chain(&names), &mut f.changes);
    // A walk to the root for each of them would take minutes here.
    let listed: Vec<PrefixHash> = f.cache.entries().iter().map(|entry| entry.piece.hash).collect();
    assert!(listed.iter().eq(hashes(&names).iter().rev()));
    f.cache.release(held, Keep::All, &mut f.changes);
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(Vec<u8>),
    Extend(usize, u8),
    Rewind(usize, usize),
    Reweigh(usize, u32),
    Release(usize, Option<u64>),
    Withdraw(usize),
    Insert(Vec<u8>, Option<u64>),
    Mark(Vec<u64>),
    Remove(u64),
    SetCapacity(u64),
    SetOrder(Order),
    StoredAgain(u64),
    ComputedAnew(Vec<u8>),
    DropOlder(u64),
    Clear,
}

/// Returns the chain of a path in a tree with three children per node; equal paths have equal names.
fn path(steps: &[u8]) -> Vec<Piece> {
    let mut name = 0;
    steps
        .iter()
        .map(|&step| {
            name = name * 3 + u64::from(step) + 1;
            piece(name, 1 + (name % 3) as u32)
        })
        .collect()
}

fn ops() -> impl Strategy<Value = Op> {
    let steps = || prop::collection::vec(0..3u8, 0..6);
    let keep = || prop::option::of(0..8u64);
    prop_oneof![
        4 => steps().prop_map(Op::Acquire),
        2 => (0..8usize, 0..3u8).prop_map(|(lease, step)| Op::Extend(lease, step)),
        1 => (0..8usize, 0..6usize).prop_map(|(lease, to)| Op::Rewind(lease, to)),
        1 => (0..8usize, 0..4u32).prop_map(|(lease, tokens)| Op::Reweigh(lease, tokens)),
        4 => (0..8usize, keep()).prop_map(|(lease, keep)| Op::Release(lease, keep)),
        2 => (0..8usize).prop_map(Op::Withdraw),
        4 => (steps(), keep()).prop_map(|(steps, keep)| Op::Insert(steps, keep)),
        2 => prop::collection::vec(1..60u64, 0..6).prop_map(Op::Mark),
        1 => (1..60u64).prop_map(Op::Remove),
        1 => (4..24u64).prop_map(Op::SetCapacity),
        1 => prop::sample::select(Order::ALL.to_vec()).prop_map(Op::SetOrder),
        1 => (1..60u64).prop_map(Op::StoredAgain),
        1 => steps().prop_map(Op::ComputedAnew),
        1 => (1..60u64).prop_map(Op::DropOlder),
        1 => Just(Op::Clear),
    ]
}

type Live = (Lease, NaiveLease, Vec<u8>);

fn apply(op: Op, real: &mut PrefixCache, twin: &mut NaiveCache, live: &mut Vec<Live>, log: &mut Vec<Change>) {
    let keep_of = |keep: Option<u64>| keep.map_or(Keep::All, |tokens| Keep::First(Tokens(tokens)));
    let mut twin_log = Vec::new();
    let before = log.len();
    match op {
        Op::Acquire(steps) => {
            let lease = real.acquire(&path(&steps), log);
            let theirs = twin.acquire(&path(&steps), &mut twin_log);
            assert_eq!(lease.hits(), theirs.hits);
            live.push((lease, theirs, steps));
        }
        Op::Extend(at, step) if !live.is_empty() => {
            let at = at % live.len();
            let (lease, theirs, steps) = &mut live[at];
            steps.push(step);
            let grown = &path(steps)[steps.len() - 1..];
            assert_eq!(
                real.extend(lease, grown, log),
                twin.extend(theirs, grown, &mut twin_log)
            );
        }
        Op::Rewind(at, to) if !live.is_empty() => {
            let at = at % live.len();
            let (lease, theirs, steps) = &mut live[at];
            let to = to.min(steps.len());
            let piece = path(steps)[..to].last().map(|piece| piece.hash);
            real.rewind(lease, piece, log);
            twin.rewind(theirs, piece);
            // A cut lease holds less than its steps, and is never extended again.
            if lease.len() == to && !lease.is_cut() {
                steps.truncate(to);
            }
            return;
        }
        Op::Reweigh(at, tokens) if !live.is_empty() => {
            let at = at % live.len();
            let (lease, theirs, steps) = &live[at];
            let same = |held: Piece| piece(held.hash.0, tokens);
            let pieces: Vec<Piece> = path(steps).into_iter().map(same).collect();
            real.reweigh(lease, &pieces, log);
            twin.reweigh(theirs, &pieces, &mut twin_log);
        }
        Op::Release(at, keep) if !live.is_empty() => {
            let (lease, theirs, _) = live.swap_remove(at % live.len());
            real.release(lease, keep_of(keep), log);
            twin.release(&theirs, keep_of(keep), &mut twin_log);
        }
        Op::Withdraw(at) if !live.is_empty() => {
            let (lease, theirs, _) = live.swap_remove(at % live.len());
            real.withdraw(lease, log);
            twin.withdraw(&theirs, &mut twin_log);
        }
        Op::Insert(steps, keep) => {
            real.insert(&path(&steps), keep_of(keep), log);
            let lease = twin.acquire(&path(&steps), &mut twin_log);
            twin.release(&lease, keep_of(keep), &mut twin_log);
        }
        Op::Mark(names) => {
            real.mark_evict_first(hashes(&names));
            names.iter().for_each(|&name| twin.mark(PrefixHash(name)));
        }
        Op::Remove(name) => {
            real.remove(PrefixHash(name), log);
            twin.remove(PrefixHash(name));
            return;
        }
        Op::SetCapacity(tokens) => {
            real.set_capacity(Tokens(tokens), log);
            twin.set_capacity(tokens, &mut twin_log);
        }
        Op::SetOrder(order) => {
            real.set_order(order);
            twin.order = order;
        }
        Op::StoredAgain(name) => {
            real.stored_again(PrefixHash(name), log);
            twin.stored_again(PrefixHash(name));
            return;
        }
        Op::ComputedAnew(steps) => {
            let pieces = path(&steps);
            let names: Vec<PrefixHash> = pieces.iter().map(|piece| piece.hash).collect();
            real.computed_anew(&names);
            twin.computed_anew(&pieces);
            return;
        }
        Op::DropOlder(name) => {
            let (one, other) = (real.standing(PrefixHash(name)), twin.standing(PrefixHash(name)));
            let public = |of: Option<Standing>| of.map(|of| (of.released, of.marked.is_some()));
            assert_eq!(public(one), public(other));
            if let (Some(one), Some(other)) = (one, other) {
                real.drop_older(one, log);
                twin.drop_older(other, &mut twin_log);
            }
        }
        Op::Clear => {
            real.clear(log);
            twin.clear();
            return;
        }
        Op::Extend(..) | Op::Rewind(..) | Op::Release(..) | Op::Withdraw(..) | Op::Reweigh(..) => {}
    }
    assert_eq!(log[before..], twin_log, "the same changes in the same order");
}

proptest! {
    #[test]
    fn it_does_what_its_naive_twin_does(
        capacity in 4..24u64,
        order in prop::sample::select(Order::ALL.to_vec()),
        ops in prop::collection::vec(ops(), 1..80),
    ) {
        let mut real = PrefixCache::new(Tokens(capacity));
        let mut twin = NaiveCache::new(capacity);
        real.set_order(order);
        twin.order = order;
        let (mut live, mut log) = (Vec::new(), Vec::new());
        for op in ops {
            apply(op, &mut real, &mut twin, &mut live, &mut log);
            prop_assert_eq!(real.invariants(), Ok(()));
            prop_assert_eq!(real.eviction_order(), twin.eviction_order());
            prop_assert_eq!(real.used().0, twin.used());
            prop_assert_eq!(real.pinned().0, twin.pinned());
            prop_assert_eq!(real.evict_first().0, twin.evict_first());
            let entries = real.entries();
            let parent = |entry: &Entry| entry.parent.map(|at| entries[at as usize].piece.hash);
            let (free, held) = entries.split_at(twin.by_recency().len());
            prop_assert_eq!(free.iter().map(|entry| entry.piece.hash).collect::<Vec<_>>(), twin.by_recency());
            prop_assert_eq!(
                held.iter().map(|entry| (entry.piece.hash, parent(entry))).collect::<Vec<_>>(),
                twin.held()
            );
        }
        // Replaying the changes on an empty set gives what is resident.
        let mut set = std::collections::BTreeSet::new();
        for change in log {
            match change {
                Change::Stored { hash, parent } => {
                    prop_assert!(parent.is_none_or(|parent| set.contains(&parent)));
                    prop_assert!(set.insert(hash));
                }
                Change::Removed { hash } => prop_assert!(set.remove(&hash)),
                Change::Cleared => set.clear(),
            }
        }
        prop_assert_eq!(set.len(), real.len());
        prop_assert!(set.iter().all(|&hash| real.contains(hash)));
    }
}
