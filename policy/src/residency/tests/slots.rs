//! Workers that join while others are served, and slots that are reused.

use super::*;

#[test]
fn a_worker_that_comes_later_takes_the_next_slot_or_any_after_it() {
    let mut residency = residency(4096);
    let (chain, late) = (prompt("a", 4), WorkerId(4));
    assert!(
        residency.sent(late, &chain, |end| end).is_none(),
        "nobody is there yet"
    );
    residency.admit(late, Tokens(512));
    serve(&mut residency, late, &chain, 0);
    serve(&mut residency, W0, &chain, 0);
    assert_eq!(
        [late, W0, W1].map(|worker| depth(&residency, worker, &chain)),
        [2, 4, 0]
    );
    // Unassigned slots before it hold nothing.
    let hold = residency.sent(WorkerId(3), &chain, |end| end).unwrap();
    assert_eq!(depth(&residency, WorkerId(3), &chain), 0);
    residency.retract(hold);
}

#[test]
fn a_slots_next_holder_has_a_cache_of_its_own() {
    let mut residency = residency(4096);
    let chain = prompt("a", 4);
    serve(&mut residency, W0, &chain, 0);
    residency.admit(W0, Tokens(512));
    assert_eq!(
        (depth(&residency, W0, &chain), residency.tokens_on(W0)),
        (0, Tokens::ZERO)
    );
    serve(&mut residency, W0, &chain, 0);
    assert_eq!(depth(&residency, W0, &chain), 2, "of its own capacity");
}

#[test]
fn a_hold_of_the_last_holder_means_nothing_to_the_next_one() {
    let mut residency = residency(4096);
    let (old, new) = (prompt("a", 4), prompt("b", 4));
    let hold = residency.sent(W0, &old, |end| end).unwrap();
    residency.admit(W0, Tokens(4096));
    let own = residency.sent(W0, &new, |end| end).unwrap();
    residency.settle(hold, None, |end| end, Tokens::ZERO, Tokens(1024));
    assert_eq!((depth(&residency, W0, &old), depth(&residency, W0, &new)), (0, 4));
    residency.settle(own, None, |end| end, Tokens::ZERO, Tokens(1024));
    assert_eq!(residency.tokens_on(W0), Tokens(1024));
}
