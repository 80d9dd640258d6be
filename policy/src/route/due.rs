//! The due time of a turn at an engine that orders prefills by priority.
//!
//! ```text
//! due = arrived + min(4·prefill, objective)          the earliest goes first
//! ```
//!
//! In order of arrival, a turn of 20 ms waits for one of five seconds that came just before. Shortest first solves
//! that, but can starve the long turn. A due time lets short turns overtake within limits: by four times the difference
//! in prefill, and never by more than the objective. Turns of a quarter of the objective and more keep their order. The
//! limit protects the longest prompts, which are late however soon they start. Without it (`arrived + 3·prefill`),
//! every turn that arrives within three times their prefill goes first, which cost a third of p99 on eight full
//! workers.

use crate::units::Millis;

/// How long a turn yields, in multiples of its prefill and up to the objective.
const PATIENCE: f64 = 4.0;

/// Returns the latest fair start of a turn, on the clock of `arrived`.
#[must_use]
pub fn due(arrived: Millis, prefill: Millis, objective: Millis) -> Millis {
    Millis(arrived.0 + (PATIENCE * prefill.0).min(objective.0).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_turn_overtakes_by_four_times_what_it_is_shorter_and_never_by_more_than_the_objective() {
        let due = |arrived, prefill| due(Millis(arrived), Millis(prefill), Millis(1000.0)).0;
        assert!(due(390.0, 100.0) < due(0.0, 200.0) && due(410.0, 100.0) > due(0.0, 200.0));
        assert!(due(990.0, 0.0) < due(0.0, 60_000.0) && due(1010.0, 0.0) > due(0.0, 60_000.0));
        assert!(
            due(0.0, 5000.0) < due(1.0, 500.0),
            "turns that are late anyway keep their order"
        );
    }
}
