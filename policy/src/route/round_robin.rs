//! `round_robin`: each ready worker in turn, whatever its cache and load.

use super::{Reason, Snapshot, Terms, Turn};

pub(super) fn score(snapshot: &Snapshot<'_>, _: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let ready = terms.iter().filter(|terms| terms.ready).count() as u64;
    if ready > 0 {
        let turn = snapshot.sequence % ready;
        for (rank, terms) in terms.iter_mut().filter(|terms| terms.ready).enumerate() {
            terms.score = ((rank as u64 + ready - turn) % ready) as f64;
        }
    }
    Reason::Rotation
}
