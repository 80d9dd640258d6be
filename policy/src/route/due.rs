//! The due time of a turn among others that wait: at an engine that orders prefills by priority, or in the router.
//!
//! ```text
//! due = arrived + min(a·prefill, b·objective)          the earliest goes first
//! ```
//!
//! In order of arrival, a turn of 20 ms waits for one of five seconds that came just before; shortest first can starve
//! the long one. A due time lets short turns overtake by `a` times the difference in prefill, and never by more than
//! `b` objectives. Without that limit (`arrived + 3·prefill`), every turn that arrives within three times their prefill
//! goes before the longest prompts, which cost a third of p99 on eight full workers.

use crate::units::Millis;

/// The time for which a turn yields to shorter ones: the lesser of two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Bound in multiples of the turn's own prefill.
    pub prefills: f64,
    /// Bound in multiples of the turn's objective.
    pub objectives: f64,
}

impl Patience {
    /// The patience at an engine that orders prefills by priority. Turns whose prefill takes a quarter of the objective
    /// or more keep the order of their arrival.
    pub const AT_ENGINE: Self = Self {
        prefills: 4.0,
        objectives: 1.0,
    };
    /// The patience in the router, which places waiting turns anew in each pass ([late binding](super::hold)).
    pub const IN_ROUTER: Self = Self {
        prefills: 1.0,
        objectives: 1.5,
    };

    /// Returns the latest fair start of a turn, on the clock of `arrived`.
    pub fn due(self, arrived: Millis, prefill: Millis, objective: Millis) -> Millis {
        let yields = (self.prefills * prefill.0).min(self.objectives * objective.0);
        Millis(arrived.0 + yields.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_turn_overtakes_by_multiples_of_the_difference_and_never_by_more_than_the_limit() {
        for (patience, overtakes, limit) in [
            (Patience::AT_ENGINE, 400.0, 1000.0),
            (Patience::IN_ROUTER, 100.0, 1500.0),
        ] {
            let due = |arrived, prefill| patience.due(Millis(arrived), Millis(prefill), Millis(1000.0)).0;
            assert!(due(overtakes - 10.0, 100.0) < due(0.0, 200.0));
            assert!(due(overtakes + 10.0, 100.0) > due(0.0, 200.0));
            assert!(due(limit - 10.0, 0.0) < due(0.0, 60_000.0));
            assert!(due(limit + 10.0, 0.0) > due(0.0, 60_000.0));
        }
    }

    #[test]
    fn turns_that_are_late_anyway_keep_their_order() {
        let due = |arrived, prefill| {
            Patience::AT_ENGINE
                .due(Millis(arrived), Millis(prefill), Millis(1000.0))
                .0
        };
        assert!(due(0.0, 5000.0) < due(1.0, 500.0));
    }
}
