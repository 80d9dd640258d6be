//! The cache evicts the blocks of `tests/vectors/t_lru.json`, in its order.

use serde::Deserialize;

use super::{Change, Keep, Piece, PrefixCache};
use crate::ids::PrefixHash;
use crate::slo::evict_first_tail;
use crate::units::Tokens;

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
    let hash = |conversation: u64, at: u64| PrefixHash(conversation << 32 | at);
    for case in vectors.cases {
        let mut cache = PrefixCache::new(Tokens(case.capacity_blocks * block));
        let tail = evict_first_tail(case.xi_tokens as f64, Tokens(case.next_prompt_tokens));
        for (&(conversation, blocks), evicted) in case.turns.iter().zip(&case.evicted) {
            let piece = |at| Piece {
                hash: hash(conversation, at),
                tokens: vectors.block_tokens,
            };
            let chain: Vec<Piece> = (0..blocks).map(piece).collect();
            let mut changes = Vec::new();
            let keep = Keep::First(Tokens(blocks * block).saturating_sub(tail));
            cache.insert(&chain, keep, &mut changes);
            let gone = changes.iter().filter_map(|change| match change {
                Change::Removed { hash } => Some(*hash),
                _ => None,
            });
            let evicted = evicted.iter().map(|&(conversation, at)| hash(conversation, at));
            assert!(gone.eq(evicted), "{conversation} {blocks}");
        }
    }
}
