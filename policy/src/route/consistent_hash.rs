//! `consistent_hash`: a conversation's worker by its name.
//!
//! Rendezvous hashing (Thaler and Ravishankar, 1998): every worker draws a number under the conversation's key and the
//! least wins, so that a worker that leaves takes only its own conversations along. No ring and no virtual nodes: a
//! fleet is small, and every worker is scored in any case. It looks at neither cache nor load, which is its weakness.

use super::{Reason, Snapshot, Terms, Turn, least_loaded, unit_random};

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let Some(conversation) = turn.conversation else {
        return least_loaded::score(snapshot, turn, terms);
    };
    for terms in terms {
        terms.score = unit_random(conversation.0, terms.worker.0);
    }
    Reason::Key
}
