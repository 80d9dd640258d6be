//! Caches that are cleared without notice, and what only looks like it.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::cache::PrefixCache;

const TURN: u64 = 1024;

/// A worker with a real cache, a mirror of it, and the count of wrong predictions.
struct Bench {
    mirror: Residency,
    real: PrefixCache,
    mispredicted: usize,
}

impl Bench {
    fn new(configured: u64, room: u64) -> Self {
        Self {
            mirror: residency(configured),
            real: PrefixCache::new(Tokens(room)),
            mispredicted: 0,
        }
    }

    fn reset(&mut self) {
        self.real.clear(&mut Vec::new());
        self.mispredicted = 0;
    }

    /// Serves a prompt. `finds` replaces the keys that the worker finds.
    fn turn_that_finds(&mut self, chain: &Chain, finds: Option<usize>) {
        let found = finds.unwrap_or_else(|| self.real.resident(chain.hashes()));
        let believed = depth(&self.mirror, W0, chain) as usize;
        self.mispredicted += usize::from(found != believed);
        if found > believed {
            self.mirror.found_more(W0);
        }
        serve_and_report(&mut self.mirror, chain, found);
        let pieces = pieces(chain, 0, |end| end);
        self.real.insert(&pieces, Keep::All, &mut Vec::new());
    }

    fn turn(&mut self, chain: &Chain) {
        self.turn_that_finds(chain, None);
    }

    fn holds(&self, chain: &Chain) -> bool {
        depth(&self.mirror, W0, chain) as usize == chain.len()
    }
}

fn conversations(count: usize) -> Vec<Chain> {
    (0..count).map(|at| prompt(&format!("c{at}"), 4)).collect()
}

/// Returns conversations that share the system prompt, of two keys.
fn sharing(count: usize) -> Vec<Chain> {
    let chain = |at: usize| {
        let mut builder = ChainBuilder::new("m", None);
        builder.begin_message("system");
        builder.push(&[b's'; 500]);
        builder.begin_message("user");
        builder.push(format!("{at:->1000}").as_bytes());
        builder.end_message();
        builder.into_chain()
    };
    (0..count).map(chain).collect()
}

/// Orders in which conversations return.
fn orders(count: usize) -> [Vec<usize>; 3] {
    let in_order: Vec<usize> = (0..count).collect();
    let reversed = in_order.iter().rev().copied().collect();
    // 7 and the count have no common divisor.
    let shuffled = in_order.iter().map(|at| (at * 7 + 3) % count).collect();
    [in_order, reversed, shuffled]
}

#[test]
fn a_reset_is_detected_after_two_or_three_turns_in_every_order() {
    for chains in [conversations(40), sharing(40)] {
        for (room, most) in [(4 * 40 * TURN, 2), (41 * TURN, 3)] {
            let mut bench = Bench::new(room, room);
            for order in orders(40).iter().cycle().take(7) {
                bench.reset();
                order.iter().for_each(|&at| bench.turn(&chains[at]));
                assert!(bench.mispredicted <= most, "{} of {order:?}", bench.mispredicted);
                // Everything is there again, and is predicted.
                bench.mispredicted = 0;
                order.iter().for_each(|&at| bench.turn(&chains[at]));
                assert_eq!(bench.mispredicted, 0, "{order:?}");
            }
        }
    }
}

/// The turns that were sent before the first of them reported are mispredicted, and show one reset.
#[test]
fn turns_at_once_show_one_reset() {
    const AT_ONCE: usize = 8;
    for chains in [conversations(40), sharing(40)] {
        let mut bench = Bench::new(1 << 20, 1 << 20);
        chains.iter().for_each(|chain| bench.turn(chain));
        bench.reset();
        let (mut resets, mut mispredicted) = (0, 0);
        let mut waiting = VecDeque::new();
        for chain in &chains {
            let believed = depth(&bench.mirror, W0, chain) as usize;
            waiting.push_back((chain, believed, bench.mirror.sent(W0, chain, |end| end).unwrap()));
            if waiting.len() < AT_ONCE {
                continue;
            }
            let (chain, believed, hold) = waiting.pop_front().unwrap();
            let found = bench.real.resident(chain.hashes());
            mispredicted += usize::from(found != believed);
            let missing = (found < believed).then_some(found);
            let report = report(chain.span(found), chain, believed, missing);
            resets += usize::from(bench.mirror.reported(&hold, &report).is_cleared);
            let used = Tokens(chain.span(chain.len()));
            bench.mirror.settle(hold, None, |end| end, Tokens::ZERO, used);
            bench
                .real
                .insert(&pieces(chain, 0, |end| end), Keep::All, &mut Vec::new());
        }
        assert_eq!(resets, 1);
        assert_eq!(mispredicted, AT_ONCE + 1);
    }
}

#[test]
fn a_reset_is_detected_under_every_eviction_order() {
    for order in [Order::Fifo, Order::Lfu, Order::Mru] {
        let chains = conversations(20);
        let mut bench = Bench::new(1 << 20, 1 << 20);
        bench.mirror.set_order(W0, order);
        chains.iter().for_each(|chain| bench.turn(chain));
        bench.reset();
        chains.iter().for_each(|chain| bench.turn(chain));
        assert_eq!(bench.mispredicted, 3, "{order:?}");
    }
}

#[test]
fn a_learned_capacity_survives_resets() {
    let chains = conversations(20);
    let mut bench = Bench::new(1 << 20, 1 << 20);
    bench.mirror.learn_capacity(W0);
    for _ in 0..6 {
        bench.reset();
        chains.iter().for_each(|chain| bench.turn(chain));
    }
    assert_eq!(bench.mispredicted, 3);
    assert_eq!(bench.mirror.capacity_of(W0), Tokens(1 << 20));
}

#[test]
fn one_conversation_that_never_matches_clears_nothing() {
    for finds in [0, 2] {
        let chains = conversations(20);
        let mut bench = Bench::new(1 << 20, 1 << 20);
        chains.iter().for_each(|chain| bench.turn(chain));
        let odd = prompt("odd", 6);
        // A partial miss may correct the mirror once.
        for _ in 0..50 {
            bench.turn_that_finds(&odd, Some(finds));
        }
        chains.iter().for_each(|chain| bench.turn(chain));
        let before = bench.mispredicted;
        for turn in 0..100 {
            bench.turn_that_finds(&odd, Some(finds));
            bench.turn(&chains[turn % 20]);
        }
        let others = bench.mispredicted - before - 100;
        assert_eq!(others, 0, "finds {finds}");
        assert!(chains.iter().all(|chain| bench.holds(chain)), "finds {finds}");
    }
}

#[test]
fn many_conversations_that_bypass_the_cache_do_not_clear_it_for_long() {
    let (chains, odd) = (conversations(20), sharing(20));
    let mut bench = Bench::new(1 << 20, 1 << 20);
    chains.iter().chain(&odd).for_each(|chain| bench.turn(chain));
    let mut wrong = 0;
    for turn in 0..400 {
        // Four prompts in a row that are not looked up, then one that is.
        for at in 0..4 {
            bench.turn_that_finds(&odd[(4 * turn + at) % 20], Some(0));
        }
        let before = bench.mispredicted;
        bench.turn(&chains[turn % 20]);
        wrong += bench.mispredicted - before;
    }
    assert!(wrong <= 100, "{wrong} of 400");
}

#[test]
fn requests_that_are_computed_at_the_same_time_are_no_loss() {
    let mut residency = residency(1 << 20);
    let old = conversations(10);
    old.iter().for_each(|chain| serve(&mut residency, W0, chain, 0));
    let burst = sharing(8);
    let holds: Vec<_> = burst
        .iter()
        .map(|chain| {
            let believed = depth(&residency, W0, chain) as usize;
            (believed, residency.sent(W0, chain, |end| end).unwrap())
        })
        .collect();
    for (chain, (believed, hold)) in burst.iter().zip(holds) {
        let missing = (believed > 0).then_some(0);
        let corrected = residency.reported(&hold, &report(0, chain, believed, missing));
        assert_eq!(corrected, Corrected::default());
        residency.settle(hold, None, |end| end, Tokens::ZERO, Tokens(TURN));
    }
    assert!(old.iter().all(|chain| depth(&residency, W0, chain) == 4));
}

#[test]
fn prompts_of_less_than_two_blocks_are_no_loss() {
    let mut residency = residency(1 << 20);
    let chains = conversations(10);
    // Each prompt counts 20 tokens.
    let tokens = |end: u64| end * 20 / TURN;
    for chain in &chains {
        let hold = residency.sent(W0, chain, tokens).unwrap();
        residency.settle(hold, None, tokens, Tokens::ZERO, Tokens(20));
    }
    for chain in &chains {
        let hold = residency.sent(W0, chain, tokens).unwrap();
        let corrected = residency.reported(&hold, &report(0, chain, 4, None));
        assert_eq!(corrected, Corrected::default());
        residency.settle(hold, None, tokens, Tokens::ZERO, Tokens(20));
    }
}

/// The losses that the first reset showed are out of date at the second one.
#[test]
fn losses_of_an_earlier_reset_do_not_hide_the_next_one() {
    let chains = conversations(6);
    // More than half full: it takes three losses.
    let mut bench = Bench::new(7 * TURN, 7 * TURN);
    chains.iter().for_each(|chain| bench.turn(chain));
    bench.reset();
    chains[..2].iter().for_each(|chain| bench.turn(chain));
    // Only these two go on.
    for turn in 0..100 {
        bench.turn(&chains[turn % 2]);
    }
    bench.reset();
    for chain in chains[..2].iter().chain(&chains[2..]) {
        bench.turn(chain);
    }
    assert!(bench.mispredicted <= 3, "{}", bench.mispredicted);
}

#[test]
fn a_hit_between_two_losses_refutes_the_first() {
    let chains = conversations(20);
    let mut bench = Bench::new(1 << 20, 1 << 20);
    chains.iter().for_each(|chain| bench.turn(chain));
    for pair in chains.chunks(2) {
        bench.turn_that_finds(&pair[0], Some(0));
        bench.turn(&pair[1]);
    }
    assert!(chains.iter().all(|chain| bench.holds(chain)));
}

/// Prompts that found less than believed, since one last found what was not used in between.
#[derive(Default)]
pub(super) struct Losses {
    pub(super) count: usize,
    served: Vec<u8>,
}

impl Losses {
    pub(super) fn see(&mut self, name: u8, found: usize, believed: usize) {
        if found < believed {
            self.count += 1;
        } else if found > 0 && !self.served.contains(&name) {
            *self = Self::default();
        }
        if self.count > 0 {
            self.served.push(name);
        }
    }
}

proptest! {
    /// A cache of which the mirror knows at least half the size: what a report removes and the worker still holds was
    /// removed after three losses without a survivor.
    #[test]
    fn evictions_are_not_taken_for_a_reset(
        turns in prop::collection::vec((0..12_u8, 1..6_usize), 1..80),
        room in 4_096..8_192_u64,
    ) {
        let mut bench = Bench::new(8_192, room);
        let mut losses = Losses::default();
        for (name, chunks) in turns {
            let chain = prompt(&format!("{name}"), chunks);
            let (found, believed) = (bench.real.resident(chain.hashes()), depth(&bench.mirror, W0, &chain) as usize);
            let before = bench.real.eviction_order();
            losses.see(name, found, believed);
            bench.turn(&chain);
            let wrong = before.into_iter().any(|hash| {
                bench.real.contains(hash) && !bench.mirror.mirrors[0].cache.contains(hash)
            });
            prop_assert!(!wrong || losses.count >= 3);
            if wrong {
                return Ok(());
            }
        }
    }
}
