//! `consistent_hash`: a worker by the conversation's id.
//!
//! Rendezvous hashing (Thaler and Ravishankar, 1998): every worker draws a number under the conversation's key and the
//! least wins, so a worker that leaves moves only its own conversations. The rule ignores cache and load.

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
