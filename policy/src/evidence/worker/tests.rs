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
        ..Stored::default()
    })
}

fn removed(hash: u64) -> Event {
    Event::Removed {
        hashes: vec![hash],
        medium: Medium::Gpu,
        group: 0,
    }
}

fn keys(names: &[u64]) -> Vec<PrefixHash> {
    names.iter().map(|&name| PrefixHash(name)).collect()
}

fn turn(session: u64, names: &[u64], since: u64) -> TurnBlocks {
    let total = 40 * names.len() as u64;
    TurnBlocks {
        session: [session, session],
        since,
        cached: None,
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
    let known = evidence.forget();
    assert_eq!(tokens(&evidence, &[1, 2]), None, "not known");
    assert_eq!(tokens(&known, &[1, 2]), Some(0), "whoever forgets it may free it");
}

#[test]
fn keys_that_end_no_block_are_there_as_far_as_what_comes_before_them() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    let ends = [32, 36, 40, 44, 46, 47, 64, 80];
    evidence.turn_over(TurnBlocks {
        keys: (1..).map(PrefixHash).zip(ends).collect(),
        ..turn(9, &[1, 2], 0)
    });
    let names = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(tokens(&evidence, &names), Some(80));
    for (gone, left) in [(15, 64), (14, 48), (13, 32), (12, 16), (11, 0)] {
        evidence.apply(&removed(gone));
        assert_eq!(tokens(&evidence, &names), Some(left));
    }
}

#[test]
fn a_turn_that_waits_for_its_blocks_gets_them_after_a_clear() {
    let mut evidence = WorkerEvidence::default();
    evidence.turn_over(turn(9, &[1, 2], 0));
    evidence.apply(&Event::Cleared);
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(80));
}

#[test]
fn a_fork_under_another_name_resolves_through_its_parents() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    evidence.turn_over(turn(9, &[1, 2], 0));
    // 40 tokens are shared, so blocks 11 and 12.
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

mod without_names {
    use super::*;

    fn unnamed(parent: Option<u64>, hashes: &[u64]) -> Event {
        Event::Stored(Stored {
            hashes: hashes.to_vec(),
            parent,
            block_size: BLOCK as u32,
            ..Stored::default()
        })
    }

    /// 80 tokens make four blocks: the KV of the fifth's last token is not computed.
    fn found(cached: u64, turn: TurnBlocks) -> TurnBlocks {
        TurnBlocks {
            cached: Some(cached),
            ..turn
        }
    }

    #[test]
    fn a_turn_is_known_by_its_shape_whether_its_events_come_at_once_or_block_by_block() {
        for (one_by_one, events_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut evidence = WorkerEvidence::default();
            let over = found(0, turn(9, &[1, 2], 0));
            if !events_first {
                evidence.turn_over(over.clone());
            }
            evidence.apply(&unnamed(None, &[91, 92]));
            if one_by_one {
                evidence.apply(&unnamed(None, &[11]));
                for hash in 12..=14 {
                    evidence.apply(&unnamed(Some(hash - 1), &[hash]));
                }
            } else {
                evidence.apply(&unnamed(None, &[11, 12]));
                evidence.apply(&unnamed(Some(12), &[13, 14]));
            }
            if events_first {
                evidence.turn_over(over);
            }
            assert_eq!(
                tokens(&evidence, &[1, 2, 3]),
                Some(64),
                "{one_by_one} {events_first}"
            );
            assert_eq!(evidence.bindings().shaped, 1);
        }
    }

    #[test]
    fn a_later_turn_goes_through_the_blocks_of_the_one_before() {
        let mut evidence = WorkerEvidence::default();
        evidence.apply(&unnamed(None, &[11, 12, 13, 14]));
        evidence.turn_over(found(0, turn(9, &[1, 2], 0)));
        let since = evidence.stored();
        // Two chains of the same length, of which only one continues the conversation.
        evidence.apply(&unnamed(None, &[81, 82, 83, 84, 85, 86, 87]));
        evidence.apply(&unnamed(Some(14), &[15, 16, 17]));
        evidence.turn_over(found(64, turn(9, &[1, 2, 3], since)));
        assert_eq!(tokens(&evidence, &[1, 2, 3]), Some(112));
        evidence.apply(&removed(17));
        assert_eq!(tokens(&evidence, &[1, 2, 3]), Some(96));
    }

    #[test]
    fn what_two_chains_or_two_turns_could_be_is_bound_to_neither() {
        let mut evidence = WorkerEvidence::default();
        evidence.apply(&unnamed(None, &[11, 12, 13, 14]));
        evidence.apply(&unnamed(None, &[21, 22, 23, 24]));
        evidence.turn_over(found(0, turn(9, &[1, 2], 0)));
        assert_eq!(tokens(&evidence, &[1, 2]), None);
        let mut evidence = WorkerEvidence::default();
        evidence.turn_over(found(0, turn(9, &[1, 2], 0)));
        evidence.turn_over(found(0, turn(8, &[3, 4], 0)));
        evidence.apply(&unnamed(None, &[11, 12, 13, 14]));
        evidence.apply(&unnamed(None, &[21, 22, 23, 24]));
        assert_eq!(
            (tokens(&evidence, &[1, 2]), tokens(&evidence, &[3, 4])),
            (None, None)
        );
        assert_eq!(evidence.bindings().ambiguous, 2);
    }

    #[test]
    fn a_chain_that_was_there_before_the_turn_is_not_the_turns() {
        let mut evidence = WorkerEvidence::default();
        evidence.apply(&unnamed(None, &[11, 12, 13, 14]));
        let since = evidence.stored();
        evidence.turn_over(found(0, turn(9, &[1, 2], since)));
        assert_eq!(tokens(&evidence, &[1, 2]), None);
        // New blocks followed, but the report says that nothing was cached.
        evidence.turn_over(found(0, turn(9, &[1, 2, 3], since)));
        evidence.apply(&unnamed(Some(14), &[15, 16, 17]));
        assert_eq!(tokens(&evidence, &[1, 2, 3]), None);
    }

    #[test]
    fn a_binding_that_a_report_contradicts_is_dropped_and_made_again() {
        let mut evidence = WorkerEvidence::default();
        evidence.apply(&unnamed(None, &[91, 92, 93, 94]));
        evidence.turn_over(found(0, turn(9, &[1, 2], 0)));
        evidence.apply(&unnamed(None, &[11, 12, 13, 14]));
        evidence.apply(&removed(94));
        assert_eq!(tokens(&evidence, &[1, 2]), Some(48));
        evidence.contradicted(&keys(&[1, 2, 3]));
        assert_eq!(tokens(&evidence, &[1, 2]), None);
        let since = evidence.stored();
        evidence.apply(&unnamed(Some(14), &[15, 16, 17]));
        evidence.turn_over(found(64, turn(9, &[1, 2, 3], since)));
        assert_eq!(tokens(&evidence, &[1, 2, 3]), Some(112));
    }
}

#[test]
fn one_group_of_layers_is_followed_the_first_that_attends_to_the_whole_prompt() {
    let of = |group, partial, event| match event {
        Event::Stored(stored) => Event::Stored(Stored {
            group,
            partial,
            ..stored
        }),
        Event::Removed { hashes, medium, .. } => Event::Removed {
            hashes,
            medium,
            group,
        },
        event => event,
    };
    let mut evidence = WorkerEvidence::default();
    let blocks = [11, 12, 13, 14, 15];
    for (group, partial) in [(0, true), (1, false), (2, false)] {
        evidence.apply(&of(group, partial, stored(9, None, &blocks)));
    }
    evidence.turn_over(turn(9, &[1, 2], 0));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(80));
    for hash in [11, 12, 13] {
        evidence.apply(&of(0, true, removed(hash)));
        evidence.apply(&of(2, false, removed(hash)));
    }
    let still = tokens(&evidence, &[1, 2]);
    assert_eq!(
        still,
        Some(80),
        "the window moved on, and another group lost its own"
    );
    evidence.apply(&of(1, false, removed(15)));
    assert_eq!(tokens(&evidence, &[1, 2]), Some(64));

    let mut windows_only = WorkerEvidence::default();
    windows_only.apply(&of(0, true, stored(9, None, &blocks)));
    windows_only.turn_over(turn(9, &[1, 2], 0));
    assert_eq!(tokens(&windows_only, &[1, 2]), None);
}

#[test]
fn a_block_counts_in_any_tier_until_it_has_left_the_last() {
    let mut evidence = WorkerEvidence::default();
    evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
    evidence.turn_over(turn(9, &[1, 2], 0));
    for medium in [Medium::Host, Medium::Disk, Medium::External] {
        // Unknown blocks stay unknown, and the order does not matter.
        let hashes = vec![15, 77, 12, 14];
        evidence.apply(&Event::Copied {
            hashes,
            medium,
            group: 0,
        });
    }
    for hash in [15, 14, 13] {
        evidence.apply(&removed(hash));
    }
    let left = tokens(&evidence, &[1, 2]);
    assert_eq!(left, Some(32), "13 is nowhere, so what follows it serves nobody");
    evidence.apply(&stored(9, Some(12), &[13]));
    for medium in [Medium::Host, Medium::Disk, Medium::External] {
        assert_eq!(tokens(&evidence, &[1, 2]), Some(80), "15 is still in {medium:?}");
        let hashes = vec![15];
        evidence.apply(&Event::Removed {
            hashes,
            medium,
            group: 0,
        });
    }
    assert_eq!(tokens(&evidence, &[1, 2]), Some(64));
    assert_eq!(evidence.blocks(), 4);
}

#[test]
fn a_copy_of_another_groups_blocks_is_none_of_the_followed_group() {
    for (group, kept) in [(0, Some(80)), (1, Some(64))] {
        let mut evidence = WorkerEvidence::default();
        evidence.apply(&stored(9, None, &[11, 12, 13, 14, 15]));
        evidence.turn_over(turn(9, &[1, 2], 0));
        // Blocks of the same tokens have the same hash in each group.
        evidence.apply(&Event::Copied {
            hashes: vec![15],
            medium: Medium::Host,
            group,
        });
        evidence.apply(&removed(15));
        assert_eq!(tokens(&evidence, &[1, 2]), kept, "group {group}");
    }
}

#[test]
fn a_long_event_in_parts_comes_to_the_same_as_the_whole() {
    let hashes: Vec<u64> = (11..35).collect();
    for session in [Some(9), None] {
        let long = Event::Stored(Stored {
            hashes: hashes.clone(),
            block_size: BLOCK as u32,
            session,
            ..Stored::default()
        });
        let gone = Event::Removed {
            hashes: (30..35).rev().collect(),
            medium: Medium::Gpu,
            group: 0,
        };
        for size in [1, 4, 7, 24, 40] {
            let mut evidence = WorkerEvidence::default();
            // The other turn has as many blocks as a part of four brings.
            evidence.turn_over(turn(9, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0));
            evidence.turn_over(turn(8, &[21, 22], 0));
            let mut parts = |event: &Event| {
                for from in (0..event.hashes().len()).step_by(size) {
                    evidence.apply_part(event, from..(from + size).min(event.hashes().len()));
                }
            };
            parts(&long);
            parts(&gone);
            let known = tokens(&evidence, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
            assert_eq!(known, Some(19 * BLOCK), "{session:?} {size}");
            assert_eq!(tokens(&evidence, &[21, 22]), None);
            assert_eq!((evidence.stored(), evidence.blocks()), (1, 19));
        }
    }
}
