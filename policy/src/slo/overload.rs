//! Overload: the fleet has more work than it can start within the objective.
//!
//! The fleet is observed at intervals. An observation shows overload if turns miss their objective and the wait alone
//! exceeds it on most ready workers, or if the router refuses requests for lack of room. The state begins after
//! [`BEGINS_AFTER`] of such observations and ends after [`ENDS_AFTER`] without one, so that a burst which drains by
//! itself does not count.

use crate::units::Millis;

/// Time of observations that show overload until the state begins.
const BEGINS_AFTER: Millis = Millis(10_000.0);
/// Time without an observation of overload until the state ends.
const ENDS_AFTER: Millis = Millis(30_000.0);
/// Longest pause between two observations of overload before the state begins: waits vary around the objective.
const PAUSE: Millis = Millis(5_000.0);
/// Time constant over which turns are counted.
const FORGETS_MS: f64 = 30_000.0;
/// Counted turns below which turns are taken to be late, since hardly any have started.
const ENOUGH_TURNS: f64 = 0.5;

/// An observation of the fleet. The counts are those since the observation before.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Time of the observation.
    pub now: Millis,
    /// Ready workers.
    pub ready: usize,
    /// Ready workers on which the predicted wait exceeds the objective.
    pub over: usize,
    /// Turns whose first token was within their objective.
    pub within: u64,
    /// Turns whose first token was late.
    pub late: u64,
    /// Requests that the router refused for lack of room.
    pub refused: u64,
    /// Share of turns that must be within their objective.
    pub share: f64,
}

/// A change of the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Overload began.
    Began,
    /// Overload ended after it had lasted this long.
    Ended(Millis),
}

/// The detector of overload.
#[derive(Clone, Debug, Default)]
pub struct Overload {
    since: Option<Millis>,
    first_over: Option<Millis>,
    last_over: Millis,
    within: f64,
    late: f64,
    at: Millis,
}

impl Overload {
    /// Returns the time at which overload began, while it lasts.
    #[must_use]
    pub fn since(&self) -> Option<Millis> {
        self.since
    }

    /// Records an observation. Returns the change of the state, if it changes.
    pub fn observe(&mut self, look: &Look) -> Option<Change> {
        self.count(look);
        if self.shows(look) {
            let first = *self.first_over.get_or_insert(look.now);
            self.last_over = look.now;
            if self.since.is_none() && look.now - first >= BEGINS_AFTER {
                self.since = Some(first);
                return Some(Change::Began);
            }
            return None;
        }
        let pause = look.now - self.last_over;
        match self.since {
            None if pause > PAUSE => self.first_over = None,
            Some(since) if pause >= ENDS_AFTER => {
                (self.since, self.first_over) = (None, None);
                return Some(Change::Ended(self.last_over - since));
            }
            _ => {}
        }
        None
    }

    fn count(&mut self, look: &Look) {
        let kept = (-(look.now - self.at).0.max(0.0) / FORGETS_MS).exp();
        self.at = look.now;
        self.within = self.within * kept + look.within as f64;
        self.late = self.late * kept + look.late as f64;
    }

    fn shows(&self, look: &Look) -> bool {
        look.refused > 0 || (look.over * 2 > look.ready && self.are_turns_late(look.share))
    }

    fn are_turns_late(&self, share: f64) -> bool {
        let turns = self.within + self.late;
        turns < ENOUGH_TURNS || self.late > (1.0 - share) * turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the changes of the state over `seconds` observations like `look`, one per second.
    fn play(overload: &mut Overload, from: u32, seconds: u32, look: Look) -> Vec<(u32, Change)> {
        (from..from + seconds)
            .filter_map(|second| {
                let now = Millis(f64::from(second) * 1e3);
                overload
                    .observe(&Look { now, ..look })
                    .map(|change| (second, change))
            })
            .collect()
    }

    const CALM: Look = Look {
        now: Millis::ZERO,
        ready: 3,
        over: 0,
        within: 1,
        late: 0,
        refused: 0,
        share: 0.95,
    };
    const LATE: Look = Look {
        over: 2,
        within: 1,
        late: 9,
        ..CALM
    };

    #[test]
    fn late_turns_behind_waits_on_most_workers_are_overload() {
        let mut overload = Overload::default();
        assert_eq!(play(&mut overload, 0, 60, CALM), []);
        assert_eq!(play(&mut overload, 60, 20, LATE), [(70, Change::Began)]);
        assert_eq!(overload.since(), Some(Millis(60_000.0)));
        let ended = Change::Ended(Millis(19_000.0));
        assert_eq!(play(&mut overload, 80, 60, CALM), [(109, ended)]);
        assert_eq!(overload.since(), None);
    }

    #[test]
    fn looks_that_are_not_overload() {
        let one_worker = Look { over: 1, ..LATE };
        let lax_objective = Look {
            within: 99,
            late: 1,
            ..LATE
        };
        let late_for_other_reasons = Look { over: 0, ..LATE };
        let no_worker = Look {
            ready: 0,
            over: 0,
            ..LATE
        };
        for look in [one_worker, lax_objective, late_for_other_reasons, no_worker] {
            assert_eq!(play(&mut Overload::default(), 0, 120, look), [], "{look:?}");
        }
    }

    #[test]
    fn refusals_for_lack_of_room_are_overload_whatever_the_waits() {
        let refusing = Look { refused: 1, ..CALM };
        assert_eq!(
            play(&mut Overload::default(), 0, 30, refusing),
            [(10, Change::Began)]
        );
    }

    #[test]
    fn waits_without_any_finished_turn_are_overload() {
        let stuck = Look {
            over: 3,
            within: 0,
            late: 0,
            ..CALM
        };
        assert_eq!(
            play(&mut Overload::default(), 0, 30, stuck),
            [(10, Change::Began)]
        );
    }

    #[test]
    fn a_burst_that_drains_is_none_and_a_short_pause_ends_nothing() {
        let mut overload = Overload::default();
        assert_eq!(play(&mut overload, 0, 9, LATE), []);
        assert_eq!(play(&mut overload, 9, 60, CALM), []);
        assert_eq!(play(&mut overload, 69, 6, LATE), []);
        assert_eq!(play(&mut overload, 75, 3, CALM), []);
        assert_eq!(play(&mut overload, 78, 6, LATE), [(79, Change::Began)]);
        assert_eq!(play(&mut overload, 84, 25, CALM), []);
        assert_eq!(play(&mut overload, 109, 60, LATE), []);
    }
}
