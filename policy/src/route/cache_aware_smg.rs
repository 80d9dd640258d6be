//! `cache_aware_smg`: the rule of SMG, the SGLang router's successor, as of its releases of 2026.
//!
//! If some worker holds more than 0.3 of the prompt, chooses the one that holds most, unless its load is more than 1.5
//! times the mean *and* more than 4 requests above it. Then, and when no worker holds enough, chooses the one with the
//! fewest requests in flight. As for `cache_aware`, the match comes from tailroute's index, which can only help the rule.

use super::{Reason, Snapshot, Terms, Turn, least_loaded, mean_in_flight};

const MATCH_THRESHOLD: f64 = 0.3;
const SPILL_RATIO: f64 = 1.5;
const SPILL_MARGIN: f64 = 4.0;

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let mean = mean_in_flight(snapshot.workers);
    let spills = |load: u32| {
        let load = f64::from(load);
        load > SPILL_RATIO * mean && load > mean + SPILL_MARGIN
    };
    let ready = (0..terms.len()).filter(|&at| terms[at].ready);
    // The longest match; of equal ones the least loaded.
    let holder = ready.max_by_key(|&at| {
        (
            terms[at].cached,
            std::cmp::Reverse(snapshot.workers[at].in_flight),
        )
    });
    let Some(holder) = holder else {
        return Reason::FewestInFlight;
    };
    if terms[holder].cached.as_f64() <= MATCH_THRESHOLD * turn.prompt.as_f64() {
        return least_loaded::score(snapshot, turn, terms);
    }
    if spills(snapshot.workers[holder].in_flight) {
        least_loaded::score(snapshot, turn, terms);
        return Reason::Overload;
    }
    for (terms, worker) in terms.iter_mut().zip(snapshot.workers) {
        if !spills(worker.in_flight) {
            terms.score = -terms.cached.as_f64();
        }
    }
    Reason::PrefixMatch
}
