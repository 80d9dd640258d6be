//! `random`: any ready worker, as a function of the decision's sequence number, so that it can be replayed.

use super::{Reason, Snapshot, Terms, Turn, unit_random};

pub(super) fn score(snapshot: &Snapshot<'_>, _: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    for terms in terms {
        terms.score = unit_random(snapshot.sequence, terms.worker.0);
    }
    Reason::Draw
}
