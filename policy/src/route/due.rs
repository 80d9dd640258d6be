//! When a turn is due at an engine that takes prefills in the order of a priority.
//!
//! ```text
//! due = arrived + min(4·prefill, objective)          the earliest goes first
//! ```
//!
//! A queue in the order of arrival makes a turn of 20 ms wait for one of five seconds that came just before. Shortest first
//! mends that, and lets the five seconds wait for ever. A due time lets short turns overtake within limits: by four times the
//! prefill that they are shorter, and never by more than the objective. Turns of a quarter of the objective and more keep
//! their order. The limit is what protects the longest prompts: they are late however soon they start, and without it
//! (`arrived + 3·prefill`, which was tried first) everybody who comes during three times their prefill goes before them,
//! which cost a third of p99 on eight full workers.

use crate::units::Millis;

/// Prefills that a turn gives way for, up to the objective.
const PATIENCE: f64 = 4.0;

/// When a turn that `arrived` then, on any clock, should be computed at the latest to be fair to the others.
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
