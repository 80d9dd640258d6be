//! The pause of a worker that declined a request for lack of room.
//!
//! A worker that declines is alive, so its breaker does not count it. While it pauses, other workers are preferred. If
//! all of them pause, none is avoided: a request may find the room that has just become free, and a refusal costs a
//! round trip. The pause is as long as the worker asks (`Retry-After`); else short, and twice as long after each pause
//! that ends with a refusal. It ends early with the next first token or the end of a response there, because both make
//! room. [`LONGEST`] bounds it, so that a worker is used within a second after it has room.

use policy::units::Millis;

/// First pause of a worker that names no time.
const FIRST: Millis = Millis(50.0);
/// Longest pause, whatever the worker asks.
const LONGEST: Millis = Millis(750.0);

/// One worker's pause. It has no clock: `now` must not go backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pause {
    until: Option<Millis>,
    length: Millis,
}

impl Pause {
    /// Records that the worker declined a request, and the time that it asks to wait. A refusal during a pause does not
    /// prolong it: the request was sent before.
    pub fn declined(&mut self, now: Millis, after: Option<Millis>) {
        if self.is_on(now) {
            return;
        }
        self.length = match after {
            Some(after) => after.min(LONGEST),
            None => Millis((2.0 * self.length.0).clamp(FIRST.0, LONGEST.0)),
        };
        self.until = Some(now + self.length);
    }

    /// Records that the worker has made room.
    pub fn made_room(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the worker pauses.
    pub fn is_on(&self, now: Millis) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how long a worker pauses that declines at `now`.
    fn declined(pause: &mut Pause, now: f64, after: Option<f64>) -> f64 {
        pause.declined(Millis(now), after.map(Millis));
        let ends = (0..5_000).find(|ms| !pause.is_on(Millis(now + f64::from(*ms))));
        f64::from(ends.expect("a pause ends"))
    }

    #[test]
    fn a_pause_doubles_with_each_refusal_after_it_up_to_a_bound() {
        let (mut pause, mut now) = (Pause::default(), 0.0);
        for length in [50.0, 100.0, 200.0, 400.0, 750.0, 750.0] {
            assert_eq!(declined(&mut pause, now, None), length);
            now += length;
        }
    }

    #[test]
    fn a_pause_is_as_long_as_the_worker_asks_up_to_a_bound() {
        for (after, length) in [(0.0, 0.0), (500.0, 500.0), (1_000.0, 750.0), (1e9, 750.0)] {
            assert_eq!(declined(&mut Pause::default(), 7.0, Some(after)), length);
        }
    }

    #[test]
    fn refusals_during_a_pause_do_not_prolong_it() {
        let mut pause = Pause::default();
        assert_eq!(declined(&mut pause, 0.0, None), 50.0);
        pause.declined(Millis(49.0), Some(Millis(700.0)));
        assert!(!pause.is_on(Millis(50.0)));
    }

    #[test]
    fn a_worker_that_makes_room_is_used_at_once_and_pauses_shortly_the_next_time() {
        let mut pause = Pause::default();
        pause.declined(Millis(0.0), Some(Millis(700.0)));
        pause.made_room();
        assert!(!pause.is_on(Millis(0.0)));
        assert_eq!(declined(&mut pause, 1.0, None), 50.0);
    }
}
