//! `prefix_hash`: a worker by the prompt's beginning, unless it is overloaded.
//!
//! Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018), as gateways use it where an index is
//! too expensive. The first tokens of the prompt are the key. A worker with more than 1.25 times the mean number of
//! requests in flight is passed over for the next one under the same key.

use super::{Reason, Snapshot, Terms, Turn, least_loaded, mean_in_flight, unit_random};

const LOAD_FACTOR: f64 = 1.25;

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let Some(head) = turn.head else {
        return least_loaded::score(snapshot, turn, terms);
    };
    // A bound of at least one leaves room for one more request.
    let bound = (LOAD_FACTOR * mean_in_flight(snapshot.workers)).max(1.0);
    for (worker, terms) in snapshot.workers.iter().zip(terms) {
        let over = f64::from(worker.in_flight) > bound;
        terms.score = unit_random(head.0, terms.worker.0) + if over { 1.0 } else { 0.0 };
    }
    Reason::Key
}
