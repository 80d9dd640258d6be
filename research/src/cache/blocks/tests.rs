//! Helpers of the tests of block caches: chains of a small tree, and turns that use them.

mod hindsight;
mod hybrid;
mod leased;
mod scored;
mod tails;

use proptest::prelude::*;

use super::*;
use crate::cache::Future;
use policy::ids::ConversationId;
use simulator::trace::ClassId;

fn hashes(names: &[u64]) -> Vec<PrefixHash> {
    names.iter().map(|name| PrefixHash(*name)).collect()
}

/// Returns a turn at a time in ms, of this many blocks of 10.
fn turn(conversation: u64, at: u64, blocks: usize) -> Served {
    Served {
        conversation: ConversationId(conversation),
        turn: 0,
        class: ClassId::DEFAULT,
        at: Millis(at as f64),
        prompt: Tokens(10),
        length: Tokens(10 * blocks as u64),
        future: Future::Unknown,
    }
}

fn config(capacity: u64) -> CacheConfig {
    CacheConfig {
        block_tokens: 10,
        ..CacheConfig::new(Tokens(capacity))
    }
}

/// Returns chains of a small tree in which a block's name determines its prefix, and sometimes a chain that violates
/// this.
fn chains() -> impl Strategy<Value = Vec<(Vec<u64>, u64)>> {
    let steps = proptest::collection::vec(0u64..3, 0..6);
    let chain = (steps, 0u8..30).prop_map(|(steps, lie)| {
        let mut name = 0;
        let mut chain: Vec<u64> = steps
            .iter()
            .map(|step| {
                name = name * 4 + step + 1;
                name
            })
            .collect();
        if lie == 0 {
            chain.reverse();
        }
        chain
    });
    proptest::collection::vec((chain, 0u64..5), 1..60)
}

type Chains = Vec<(Vec<u64>, u64)>;

fn with_turns(chains: Chains) -> impl Iterator<Item = (Vec<PrefixHash>, Served)> {
    let mut now = 0;
    chains.into_iter().map(move |(names, gap)| {
        now += gap;
        let conversation = names.last().copied().unwrap_or(0) % 7;
        let class = ClassId((conversation % 3) as u16);
        let number = (conversation % 4) as u32;
        let served = Served {
            class,
            turn: number,
            ..turn(conversation, now, names.len())
        };
        (hashes(&names), served)
    })
}

fn sorted(mut blocks: Vec<PrefixHash>) -> Vec<PrefixHash> {
    blocks.sort();
    blocks
}
