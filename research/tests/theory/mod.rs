//! What the tests of the theorems share.

use lab::cache::{CacheConfig, Future, Served};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};
use simulator::trace::ClassId;

pub(crate) fn served(conversation: usize, prompt: u64, length: u64, at_s: f64, future: Future) -> Served {
    Served {
        conversation: ConversationId(conversation as u64),
        turn: 0,
        class: ClassId::DEFAULT,
        at: Millis(at_s * 1e3),
        prompt: Tokens(prompt),
        length: Tokens(length),
        future,
    }
}

pub(crate) fn config(capacity: u64, xi: u64, forced: bool) -> CacheConfig {
    CacheConfig {
        xi_tokens: xi as f64,
        forced,
        ..CacheConfig::new(Tokens(capacity))
    }
}

/// Returns every way to keep at most `most[i]` tokens of each conversation and `capacity` in all; exactly `whole` of
/// one.
pub(crate) fn allocations(most: &[u64], capacity: u64, whole: Option<usize>) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for (at, &most) in most.iter().enumerate() {
        let least = if whole == Some(at) { most.min(capacity) } else { 0 };
        let grown = all.iter().flat_map(|kept: &Vec<u64>| {
            let left = capacity - kept.iter().sum::<u64>();
            (least..=most.min(left))
                .map(|x| [&kept[..], &[x]].concat())
                .collect::<Vec<_>>()
        });
        all = grown.collect();
    }
    all
}
