//! The cache of a worker without hints.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use super::*;
use crate::ids::PrefixHash;

/// Tokens of a chunk, at one token per byte.
const CHUNK: u64 = 256;

/// Returns the comparison that the next turn would find, without sending it.
fn compared(residency: &Residency, chain: &Chain) -> Option<Compared> {
    let mirror = &residency.mirrors[W0.index()];
    let hits = mirror.cache.resident(chain.hashes());
    mirror.compare(&pieces(chain, 0, |end| end), hits)
}

/// Returns the keys, last first, as a conversation's keys are passed in.
fn keys(chain: &Chain) -> impl Iterator<Item = PrefixHash> {
    chain.hashes().iter().rev().copied()
}

#[test]
fn a_worker_that_was_told_nothing_is_compared_with_nothing() {
    let mut residency = residency(100 * CHUNK);
    let chain = prompt("a", 50);
    serve(&mut residency, W0, &chain, 0);
    assert_eq!(compared(&residency, &chain), None);
    residency.trimmed(W0, keys(&chain), Tokens(10 * CHUNK));
    let all = Tokens(50 * CHUNK);
    let same = Compared {
        hinted: all,
        untold: all,
    };
    assert_eq!(
        compared(&residency, &chain),
        Some(same),
        "marked, but not evicted"
    );
    residency.forget(W0);
    assert_eq!(compared(&residency, &chain), None);
}

#[test]
fn an_end_that_was_given_up_would_still_be_there_under_lru() {
    let mut residency = residency(3_000 * CHUNK);
    let (older, given_up) = (prompt("older", 1_000), prompt("given up", 1_000));
    for chain in [&older, &given_up, &prompt("newer", 1_000)] {
        serve(&mut residency, W0, chain, 0);
    }
    residency.trimmed(W0, keys(&given_up), Tokens(200 * CHUNK));
    serve(&mut residency, W0, &prompt("another", 600), 0);

    let (all, most) = (Tokens(1_000 * CHUNK), Tokens(750 * CHUNK));
    let at = compared(&residency, &given_up).unwrap();
    assert!(at.hinted < most && at.untold == all, "{at:?}");
    // LRU would have evicted the end of the oldest instead.
    let at = compared(&residency, &older).unwrap();
    assert!(at.hinted == all && at.untold < most, "{at:?}");
}

#[test]
fn a_piece_that_the_worker_turns_out_not_to_hold_is_not_there_under_lru_either() {
    let mut residency = residency(300 * CHUNK);
    let (old, chain) = (prompt("old", 100), prompt("a", 100));
    serve(&mut residency, W0, &old, 0);
    serve(&mut residency, W0, &chain, 0);
    residency.trimmed(W0, keys(&old), Tokens(10 * CHUNK));
    let hold = residency.sent(W0, &chain, |end| end).unwrap();
    let report = report(20 * CHUNK, &chain, 100, Some(20));
    residency.reported(&hold, &report);
    residency.settle(hold, None, |end| end, Tokens::ZERO, Tokens(100 * CHUNK));
    let at = compared(&residency, &old).unwrap();
    assert_eq!(at.hinted, at.untold, "nothing of it is left: {at:?}");
    assert!(at.untold < Tokens(30 * CHUNK), "{at:?}");
}

/// Where each turn clears its own marks, both sides are the same LRU, and the sample must agree with the whole.
#[test]
fn the_sample_agrees_with_the_whole() {
    let mut residency = residency(2_000 * CHUNK);
    serve(&mut residency, W0, &prompt("0", 1), 1);
    let (mut hinted, mut untold, mut asked) = (0, 0, 0);
    // Conversations that return after a few others, or after many, when they have been evicted.
    let mut rng = Pcg64::seed_from_u64(1);
    for _ in 0..2_000 {
        let conversation = rng.random_range(0..80);
        let chain = prompt(&conversation.to_string(), 50);
        if let Some(compared) = compared(&residency, &chain) {
            hinted += compared.hinted.0;
            untold += compared.untold.0;
            asked += 50 * CHUNK;
        }
        serve(&mut residency, W0, &chain, 0);
    }
    assert!(
        (asked / 5..asked * 4 / 5).contains(&hinted),
        "{hinted} of {asked}"
    );
    let ratio = untold as f64 / hinted as f64;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
