//! `power_of_two`: of two random ready workers the one with fewer requests in flight (Mitzenmacher, "The Power of Two
//! Choices in Randomized Load Balancing", 2001). It gives most of the balance of `least_loaded` without herding.

use super::{Reason, Snapshot, Terms, Turn, unit_random};

pub(super) fn score(snapshot: &Snapshot<'_>, _: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    // The two least draws are a uniform pair.
    let mut drawn: [Option<(f64, usize)>; 2] = [None, None];
    for (at, candidate) in terms.iter().enumerate().filter(|(_, terms)| terms.ready) {
        let draw = unit_random(snapshot.sequence, candidate.worker.0);
        if drawn[0].is_none_or(|(least, _)| draw < least) {
            drawn = [Some((draw, at)), drawn[0]];
        } else if drawn[1].is_none_or(|(second, _)| draw < second) {
            drawn[1] = Some((draw, at));
        }
    }
    for (_, at) in drawn.into_iter().flatten() {
        terms[at].score = f64::from(snapshot.workers[at].in_flight);
    }
    Reason::FewestInFlight
}
