//! Reported and learned capacities.

use super::*;

/// Plays turns of random conversations, of four keys each, on a worker with the cache `engine`, which reports what it
/// found.
fn go_round(residency: &mut Residency, engine: &mut Residency, conversations: usize, rounds: usize) {
    let chains: Vec<Chain> = (0..conversations)
        .map(|at| prompt(&format!("c{at}"), 4))
        .collect();
    let mut drawn = 1u64;
    for _ in 0..rounds * conversations {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let chain = &chains[(drawn >> 33) as usize % conversations];
        let found = depth(engine, W0, chain) as usize;
        serve(engine, W0, chain, 0);
        serve_and_report(residency, chain, found);
    }
}

#[test]
fn a_capacity_that_nobody_has_said_is_learned_from_what_is_missing() {
    let (mut guessed, mut engine) = (residency(500_000), residency(20_480));
    go_round(&mut guessed, &mut engine, 60, 20);
    assert_eq!(guessed.capacity_of(W0), Tokens(500_000), "it is believed");
    let (mut guessed, mut engine) = (residency(500_000), residency(20_480));
    guessed.learn_capacity(W0);
    go_round(&mut guessed, &mut engine, 60, 20);
    let learned = guessed.capacity_of(W0).0;
    assert!((18_000..24_000).contains(&learned), "{learned}");
    guessed.set_reported_capacity(W0, Tokens(20_480));
    assert_eq!(
        (guessed.capacity_of(W0), guessed.learns_capacity(W0)),
        (Tokens(20_480), false)
    );
    assert!(guessed.tokens_on(W0) <= Tokens(20_480));
}

#[test]
fn a_cache_that_is_cleared_once_or_twice_is_not_taken_for_a_small_one() {
    let mut guessed = residency(20_480);
    guessed.learn_capacity(W0);
    for _ in 0..2 {
        for at in 0..10 {
            serve(&mut guessed, W0, &prompt(&format!("c{at}"), 4), 0);
        }
        // Two conversations are not found at all: one alone would be a suspicion.
        serve_and_report(&mut guessed, &prompt("c8", 4), 0);
        serve_and_report(&mut guessed, &prompt("c9", 4), 0);
    }
    assert_eq!(guessed.capacity_of(W0), Tokens(20_480));
}

#[test]
fn a_full_mirror_grows_where_more_is_found_than_it_holds() {
    let mut guessed = residency(4096);
    guessed.learn_capacity(W0);
    guessed.found_more(W0);
    assert_eq!(guessed.capacity_of(W0), Tokens(4096), "it is not full");
    for at in 0..4 {
        serve(&mut guessed, W0, &prompt(&format!("c{at}"), 4), 0);
    }
    guessed.found_more(W0);
    assert_eq!(guessed.capacity_of(W0), Tokens(4352));
    guessed.set_reported_capacity(W0, Tokens(4096));
    guessed.found_more(W0);
    assert_eq!(guessed.capacity_of(W0), Tokens(4096), "it said so");
}
