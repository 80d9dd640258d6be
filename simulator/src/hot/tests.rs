use std::collections::{HashMap, HashSet};

use super::*;

fn turns(count: usize) -> Vec<Turn> {
    Hot::new(1).take(count).collect()
}

fn assistant(turn: &Turn) -> usize {
    let block = turn.blocks.as_ref().and_then(|blocks| blocks.first());
    (block.unwrap() / POSITIONS) as usize
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn a_seed_is_a_workload() {
    assert_eq!(turns(500), turns(500));
    assert_ne!(turns(500), Hot::new(2).take(500).collect::<Vec<_>>());
}

#[test]
fn it_is_a_valid_trace() {
    let turns = turns(5000);
    assert!(turns.is_sorted_by(|a, b| a.ts_s <= b.ts_s));
    let mut said: HashMap<ConversationId, (u32, Tokens)> = HashMap::new();
    let mut parents: HashMap<u64, Option<u64>> = HashMap::new();
    for turn in &turns {
        let (number, length) = said.entry(turn.conversation).or_default();
        assert_eq!((turn.turn, turn.history_tokens), (*number, *length));
        (*number, *length) = (turn.turn + 1, turn.total_tokens());
        let blocks = turn.blocks.as_ref().unwrap();
        assert_eq!(
            blocks.len() as u64,
            turn.input_tokens().0 / u64::from(BLOCK_TOKENS)
        );
        let mut parent = None;
        for &block in blocks {
            assert_eq!(
                *parents.entry(block).or_insert(parent),
                parent,
                "a name is a prefix"
            );
            parent = Some(block);
        }
    }
}

#[test]
fn it_has_the_shape_that_it_says() {
    let turns = turns(40_000);
    let first: Vec<&Turn> = turns.iter().filter(|turn| turn.turn == 0).collect();
    let conversations = first.len() as f64;
    for (rank, least, most) in [(0, 0.46, 0.50), (1, 0.22, 0.26), (2, 0.14, 0.18), (3, 0.10, 0.14)] {
        let of = first.iter().filter(|turn| assistant(turn) == rank).count() as f64;
        let share = of / conversations;
        assert!((least..most).contains(&share), "{rank}: {share}");
    }
    let mean_turns = turns.len() as f64 / conversations;
    assert!((7.6..8.4).contains(&mean_turns), "{mean_turns}");
    let later = turns.iter().filter(|turn| turn.turn > 0);
    let prompt = median(later.map(|turn| turn.prompt_tokens.0).collect());
    assert!((285..315).contains(&prompt), "{prompt}");
    let response = median(turns.iter().map(|turn| turn.response_tokens.0).collect());
    assert!((144..156).contains(&response), "{response}");
}

#[test]
fn conversations_of_one_assistant_share_its_system_prompt_and_nothing_else() {
    let turns = turns(400);
    let first: Vec<&Turn> = turns.iter().filter(|turn| turn.turn == 0).collect();
    for (at, one) in first.iter().enumerate() {
        for other in &first[..at] {
            let own: HashSet<u64> = one.blocks.iter().flatten().copied().collect();
            let shared = other.blocks.iter().flatten().filter(|block| own.contains(block));
            let expected = if assistant(one) == assistant(other) {
                SYSTEM_PROMPTS[assistant(one)] / u64::from(BLOCK_TOKENS)
            } else {
                0
            };
            assert_eq!(shared.count() as u64, expected);
        }
    }
}
