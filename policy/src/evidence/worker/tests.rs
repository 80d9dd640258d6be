use super::*;
use crate::evidence::Medium;

const BLOCK: u64 = 16;

fn stored(session: u64, parent: Option<u64>, hashes: &[u64]) -> Event {
    Event::Stored(Stored {
        hashes: hashes.to_vec(),
        parent,
        block_size: BLOCK as u32,
        medium: Medium::Gpu,
        session: Some(session),
    })
}

fn removed(hash: u64) -> Event {
    Event::Removed {
        hashes: vec![hash],
        medium: Medium::Gpu,
    }
}

fn keys(names: &[u64]) -> Vec<PrefixHash> {
    names.iter().map(|&name| PrefixHash(name)).collect()
}

/// Keys of 40 tokens each.
fn turn(session: u64, names: &[u64], since: u64) -> TurnBlocks {
    let total = 40 * names.len() as u64;
    TurnBlocks {
        session: [session, session],
        since,
        keys: (1..)
            .zip(names)
            .map(|(at, &name)| (PrefixHash(name), 40 * at))
            .collect(),
        prompt: total - 20,
        total,
    }
}

fn tokens(evidence: &WorkerEvidence, names: &[u64]) -> Option<u64> {
    evidence.resident(&keys(names)).map(|resident| resident.tokens.0)
}

#[test]
fn keys_are_bound_whether_the_events_or_the_answer_come_first() {
    for events_first in [false, true] {
        let mut evidence = WorkerEvidence::default();
        let event = stored(9, None, &[11, 12, 13, 14, 15]);
        if events_first {
            evidence.apply(&event);
            evidence.turn_over(turn(9, &[1, 2], 0));
        } else {
            evidence.turn_over(turn(9, &[1, 2], 0));
            assert_eq!(tokens(&evidence, &[1, 2]), None);
            evidence.apply(&event);
        }
        assert_eq!(tokens(&evidence, &[1, 2, 3]), Some(80));
        assert_eq!(
            tokens(&evidence, &[1, 5]),
            Some(32),
            "a fork within the third block"
        );
        assert_eq!(tokens(&evidence, &[5]), None);
    }
}

#[test]
fn what_was_removed_is_taken_off_to_the_block() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    evidence.turn_over(turn(9, &[1, 2], 0));
    evidence.apply(&removed(15));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(64));
    evidence.apply(&removed(12));
    assert_eq!(
        tokens(&evidence, &[1, 2]),
        Some(16),
        "what follows a hole serves nobody"
    );
    evidence.apply(&stored(8, Some(11), &[12]));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(64));
    evidence.apply(&Event::Cleared);
    assert_eq!(tokens(&evidence, &[1, 2]), Some(0), "known to be gone");
    evidence.forget();
    assert_eq!(tokens(&evidence, &[1, 2]), None, "not known");
}

#[test]
fn a_fork_under_another_name_resolves_through_its_parents() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    evidence.turn_over(turn(9, &[1, 2], 0));
    // 40 tokens shared, so blocks 11 and 12.
    evidence.apply(&stored(7, Some(12), &[23, 24, 25]));
    evidence.turn_over(turn(7, &[1, 3], 1));
    assert_eq!(tokens(&evidence, &[1, 3]), Some(80));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(80));
    evidence.apply(&removed(15));
    evidence.apply(&removed(14));
    evidence.apply(&removed(13));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(32));
    assert_eq!(tokens(&evidence, &[1, 3]), Some(80));
}

#[test]
fn an_older_branch_of_the_same_name_is_not_taken_for_the_new_one() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    evidence.turn_over(turn(9, &[1, 2], 0));
    let since = evidence.stored();
    evidence.turn_over(turn(9, &[1, 4], since));
    assert_eq!(tokens(&evidence, &[1, 4]), Some(32), "only what was known before");
    evidence.apply(&stored(9, Some(12), &[33, 34, 35]));
    assert_eq!(tokens(&evidence, &[1, 4]), Some(80));
}

#[test]
fn a_bounded_map_keeps_what_is_used() {
    let mut recent = Recent::new(8);
    for at in 0..100_u32 {
        recent.put(0, 0);
        recent.put(at, at);
    }
    assert!(recent.get(0).is_some() && recent.get(99).is_some() && recent.get(50).is_none());
    assert!(recent.young.len() + recent.old.len() <= 8);
}
