//! Foresight: for every turn, whether and when its conversation returns, and the length of that prompt.

use rustc_hash::FxHashMap;

use crate::cache::Future;
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Returns the future of each turn of a whole trace, given its conversations and new prompt tokens in order.
#[must_use]
pub fn futures(turns: &[(ConversationId, Tokens)]) -> Vec<Future> {
    let mut upcoming: FxHashMap<ConversationId, (u64, Tokens)> = FxHashMap::default();
    let mut futures = vec![Future::Last; turns.len()];
    for (at, (conversation, prompt)) in turns.iter().enumerate().rev() {
        if let Some((position, prompt)) = upcoming.insert(*conversation, (at as u64, *prompt)) {
            futures[at] = Future::Next { position, prompt };
        }
    }
    futures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_knows_its_conversations_next_one() {
        let turns = [(1, 5), (2, 6), (1, 7)].map(|(id, prompt)| (ConversationId(id), Tokens(prompt)));
        let next = Future::Next {
            position: 2,
            prompt: Tokens(7),
        };
        assert_eq!(futures(&turns), [next, Future::Last, Future::Last]);
    }
}
