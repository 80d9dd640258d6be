//! `least_loaded`: the fewest requests in flight. A request counts as one, however long its prompt.

use super::{Reason, Snapshot, Terms, Turn};

pub(super) fn score(snapshot: &Snapshot<'_>, _: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    for (worker, terms) in snapshot.workers.iter().zip(terms.iter_mut()) {
        terms.score = f64::from(worker.in_flight);
    }
    Reason::FewestInFlight
}
