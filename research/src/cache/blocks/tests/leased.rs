//! Scored blocks that sequences hold while they run.

use std::sync::Arc;

use super::scored::Recency;
use super::*;
use crate::cache::blocks::scored::Score;
use crate::cache::blocks::uses::{Upcoming, Uses};
use policy::cache::{Change, Keep, Lease, Piece, PrefixCache};
use simulator::fleet::{BlockLease, RankedCache};

const NOW: Millis = Millis(0.0);

fn begin<S: Score + std::fmt::Debug>(cache: &mut ScoredBlocks<S>, names: &[u64]) -> BlockLease {
    cache.acquire(NOW, &hashes(names), &mut Vec::new())
}

fn serve<S: Score + std::fmt::Debug>(cache: &mut ScoredBlocks<S>, names: &[u64]) -> u64 {
    let lease = begin(cache, names);
    let hits = lease.hit_tokens.0 / 10;
    cache.release(lease, &turn(names[0], 0, names.len()));
    assert_eq!(cache.check(), Ok(()));
    hits
}

#[test]
fn what_a_sequence_holds_is_no_victim_and_cuts_short_who_finds_no_room() {
    let mut cache = ScoredBlocks::new(config(40), Recency::default());
    let mut first = begin(&mut cache, &[1, 2]);
    let second = begin(&mut cache, &[3, 4, 5]);
    assert_eq!(cache.used(), Tokens(40));
    let mut changes = Vec::new();
    cache.extend(&mut first, &hashes(&[6]), &mut changes);
    assert_eq!(changes, [], "the answer finds no room");
    cache.release(second, &turn(3, 0, 3));
    cache.extend(&mut first, &hashes(&[6]), &mut changes);
    assert_eq!(changes, [], "a sequence that was cut short stays so");
    cache.release(first, &turn(1, 0, 2));
    assert_eq!(
        (serve(&mut cache, &[1, 2]), serve(&mut cache, &[3, 4, 5])),
        (2, 2)
    );
}

#[test]
fn a_lease_from_before_a_clear_holds_nothing() {
    let mut cache = ScoredBlocks::new(config(40), Recency::default());
    let lease = begin(&mut cache, &[1, 2]);
    let mut changes = Vec::new();
    cache.clear(&mut changes);
    assert_eq!(changes, [Change::Cleared]);
    let after = begin(&mut cache, &[1, 2, 3]);
    assert_eq!(after.hit_tokens, Tokens::ZERO);
    cache.release(lease, &turn(1, 0, 2));
    cache.release(after, &turn(1, 0, 3));
    assert_eq!((cache.check(), cache.used()), (Ok(()), Tokens(30)));
}

/// Returns a cache of two free blocks, in hindsight of five prompts.
fn hindsight(budgets: Option<Vec<Tokens>>) -> ScoredBlocks<Upcoming> {
    let chains = [[1], [2], [3], [1], [2]].map(|names| hashes(&names));
    let uses = Arc::new(Uses::new(chains.iter().map(Vec::as_slice)));
    ScoredBlocks::new(config(20), Upcoming::new(uses, 5, budgets))
}

fn play(cache: &mut ScoredBlocks<Upcoming>, turn: u32, name: u64) -> u64 {
    cache.passed(turn);
    serve(cache, &[name])
}

#[test]
fn the_furthest_next_use_goes_first() {
    let mut cache = hindsight(None);
    assert_eq!((play(&mut cache, 0, 1), play(&mut cache, 1, 2)), (0, 0));
    assert_eq!(play(&mut cache, 2, 3), 0);
    assert_eq!((play(&mut cache, 3, 1), play(&mut cache, 4, 2)), (1, 0));
}

#[test]
fn a_next_use_elsewhere_is_none() {
    let mut cache = hindsight(None);
    assert_eq!((play(&mut cache, 0, 1), play(&mut cache, 1, 2)), (0, 0));
    // Turn 3, of block 1, went to another worker.
    cache.passed(3);
    assert_eq!(cache.check(), Ok(()));
    assert_eq!((play(&mut cache, 2, 3), play(&mut cache, 4, 2)), (0, 1));
}

#[test]
fn what_the_next_use_does_not_miss_goes_before_what_it_does() {
    let mut cache = hindsight(Some([0, 0, 0, 0, 10].map(Tokens).to_vec()));
    assert_eq!((play(&mut cache, 0, 1), play(&mut cache, 1, 2)), (0, 0));
    assert_eq!(play(&mut cache, 2, 3), 0);
    assert_eq!((play(&mut cache, 3, 1), play(&mut cache, 4, 2)), (0, 1));
}

struct Sequence {
    names: Vec<PrefixHash>,
    ours: BlockLease,
    theirs: Lease,
}

fn pieces(chain: &[PrefixHash]) -> Vec<Piece> {
    chain.iter().map(|&hash| Piece { hash, tokens: 10 }).collect()
}

type Outcome = (Vec<Change>, Vec<Change>);

/// Begins a sequence with the first `prompt` of these blocks.
fn begin_both(
    (ours, theirs): (&mut ScoredBlocks<Recency>, &mut PrefixCache),
    names: Vec<PrefixHash>,
    prompt: usize,
) -> (Sequence, Outcome) {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let (prompt, reply) = names.split_at(prompt.min(names.len()));
    let sequence = Sequence {
        ours: ours.acquire(NOW, prompt, &mut here),
        theirs: theirs.acquire(&pieces(prompt), &mut there),
        names: reply.to_vec(),
    };
    (sequence, (here, there))
}

fn end_both(
    (ours, theirs): (&mut ScoredBlocks<Recency>, &mut PrefixCache),
    sequence: Sequence,
    turn: &Served,
) -> Outcome {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let Sequence {
        names,
        ours: mut mine,
        theirs: mut yours,
    } = sequence;
    ours.extend(&mut mine, &names, &mut here);
    theirs.extend(&mut yours, &pieces(&names), &mut there);
    ours.release(mine, turn);
    theirs.release(yours, Keep::All, &mut there);
    (here, there)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn scored_by_recency_it_changes_as_the_lru_of_engines_does_however_sequences_overlap(
        chains in chains(),
        capacity in 0u64..250,
        at_once in 1usize..5,
        picks in proptest::collection::vec((0usize..5, 0usize..6), 60),
    ) {
        let mut ours = ScoredBlocks::new(config(capacity), Recency::default());
        let mut theirs = PrefixCache::new(Tokens(capacity));
        let mut running: Vec<Sequence> = Vec::new();
        for ((chain, turn), (pick, prompt)) in with_turns(chains).zip(picks) {
            if running.len() == at_once {
                let sequence = running.swap_remove(pick % at_once);
                let (here, there) = end_both((&mut ours, &mut theirs), sequence, &turn);
                prop_assert_eq!(here, there);
            }
            let (sequence, (here, there)) = begin_both((&mut ours, &mut theirs), chain, prompt);
            prop_assert_eq!(here, there);
            prop_assert_eq!(sequence.ours.hit_tokens, sequence.theirs.hit_tokens());
            running.push(sequence);
            prop_assert_eq!(ours.used(), theirs.used());
            prop_assert_eq!(ours.check(), Ok(()));
        }
    }
}
