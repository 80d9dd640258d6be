//! T-LRU evicts the blocks of `tests/vectors/t_lru.json` for each turn. The order within a turn is not visible here.

use serde::Deserialize;
use simulator::trace::ClassId;

use super::t_lru::TLru;
use super::*;

#[derive(Deserialize)]
struct Vectors {
    block_tokens: u32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    capacity_blocks: u64,
    xi_tokens: u64,
    next_prompt_tokens: u64,
    /// A conversation, and its blocks.
    turns: Vec<(u64, u64)>,
    evicted: Vec<Vec<(u64, u64)>>,
}

#[test]
fn evictions_are_those_of_t_lru() {
    let vectors: Vectors = serde_json::from_str(include_str!("../../../tests/vectors/t_lru.json")).unwrap();
    let block = u64::from(vectors.block_tokens);
    for case in vectors.cases {
        let mut cache = TLru::new(CacheConfig {
            block_tokens: vectors.block_tokens,
            xi_tokens: case.xi_tokens as f64,
            next_prompt: Tokens(case.next_prompt_tokens),
            forced: true,
            ..CacheConfig::new(Tokens(case.capacity_blocks * block))
        });
        for (at, (&(conversation, blocks), evicted)) in case.turns.iter().zip(&case.evicted).enumerate() {
            let before = cache.dump();
            let history = case.turns[..at].iter().rfind(|turn| turn.0 == conversation);
            cache.served(&Served {
                conversation: ConversationId(conversation),
                turn: 0,
                class: ClassId::DEFAULT,
                at: Millis(at as f64),
                prompt: Tokens((blocks - history.map_or(0, |turn| turn.1)) * block),
                length: Tokens(blocks * block),
                future: Future::Last,
            });
            let others = before.into_iter().filter(|(one, _)| one.0 != conversation);
            let mut gone: Vec<(u64, u64)> = others
                .flat_map(|(one, held)| {
                    let left = cache.resident(one).0 / block;
                    (left..held.0 / block).map(move |position| (one.0, position))
                })
                .collect();
            let mut evicted = evicted.clone();
            gone.sort_unstable();
            evicted.sort_unstable();
            assert_eq!(gone, evicted, "turn {at}");
        }
    }
}
