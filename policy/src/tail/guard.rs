//! The verdict on hints: late turns with hints, compared with late turns under plain LRU.
//!
//! Both counts come from the same turn behind the same queue ([`Compared`](crate::residency::Compared)). When hints
//! make significantly more turns late, hinting pauses for some thousand turns before it is tried again, twice as long
//! each time. A verdict takes many turns because the cost of a trim comes before its gain: the conversation's next turn
//! misses the trimmed end, while the freed room serves other conversations for a cache's lifetime.
//!
//! Rejected: comparing milliseconds beyond T instead of turns. A few very late turns dominate that sum.

use serde::{Deserialize, Serialize};

/// Turns needed for a verdict.
const ENOUGH: f64 = 1_000.0;
/// Time constant of the exponential decay, in turns.
const MEMORY: f64 = 4_000.0;
const FIRST_PAUSE: u64 = 2_000;
/// Upper bound on a pause, in turns.
const LONGEST_PAUSE: u64 = 32_000;

/// Pauses hints while they make more turns late than LRU would.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Guard {
    seen: Seen,
    pause: u64,
    next_pause: u64,
}

/// Decayed counts since the last pause.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Seen {
    turns: f64,
    hinted: f64,
    untold: f64,
    /// Sum of squared differences: the variance of the summed difference if turns are independent.
    squares: f64,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            seen: Seen::default(),
            pause: 0,
            next_pause: FIRST_PAUSE,
        }
    }
}

impl Guard {
    /// Returns whether turns can have led to these numbers, which another process wrote.
    pub(super) fn is_sound(&self) -> bool {
        let Seen {
            turns,
            hinted,
            untold,
            squares,
        } = self.seen;
        let sound = |number: f64| (0.0..=1e9).contains(&number);
        [turns, hinted, untold, squares].into_iter().all(sound)
            && self.pause <= LONGEST_PAUSE
            && (FIRST_PAUSE..=LONGEST_PAUSE).contains(&self.next_pause)
    }

    /// Records the lateness of one turn with hints and under LRU.
    pub(super) fn turn(&mut self, hinted: f64, untold: f64) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        self.seen.add(hinted, untold);
        if self.seen.is_worse() {
            self.seen = Seen::default();
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        }
    }

    /// Returns whether hints are allowed.
    pub fn allows(&self) -> bool {
        self.pause == 0
    }

    /// Returns the turns until the next trial; 0 while hints are allowed.
    pub fn pause(&self) -> u64 {
        self.pause
    }

    /// Returns late turns with hints over late turns under LRU, or `None` before enough turns were seen.
    pub fn late_ratio(&self) -> Option<f64> {
        let Seen {
            turns,
            hinted,
            untold,
            ..
        } = self.seen;
        (turns >= ENOUGH && untold > 0.0).then(|| hinted / untold)
    }
}

impl Seen {
    fn add(&mut self, hinted: f64, untold: f64) {
        let stays = 1.0 - 1.0 / MEMORY;
        self.turns = self.turns * stays + 1.0;
        self.hinted = self.hinted * stays + hinted;
        self.untold = self.untold * stays + untold;
        self.squares = self.squares * stays + (hinted - untold).powi(2);
    }

    /// Returns whether hints are worse by more than two standard deviations.
    fn is_worse(&self) -> bool {
        self.turns >= ENOUGH && self.hinted - self.untold > 2.0 * self.squares.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays turns of which `hinted` and `untold` in a hundred are late, never the same ones.
    fn play(guard: &mut Guard, turns: u64, hinted: u64, untold: u64) {
        for turn in 0..turns {
            let at = turn % 100;
            let late = |from: u64, count: u64| f64::from(u8::from((from..from + count).contains(&at)));
            guard.turn(late(0, hinted), late(50, untold));
        }
    }

    #[test]
    fn hints_that_make_fewer_turns_late_go_on() {
        let mut guard = Guard::default();
        play(&mut guard, 50_000, 5, 8);
        assert!(guard.allows());
        assert!(
            guard
                .late_ratio()
                .is_some_and(|ratio| (ratio - 5.0 / 8.0).abs() < 0.05)
        );
    }

    #[test]
    fn hints_that_change_nothing_go_on() {
        let mut guard = Guard::default();
        play(&mut guard, 50_000, 0, 0);
        assert!(guard.allows());
        assert_eq!(guard.late_ratio(), None);
    }

    #[test]
    fn hints_that_make_more_turns_late_pause_for_longer_and_longer() {
        let mut guard = Guard::default();
        play(&mut guard, ENOUGH as u64 - 100, 8, 5);
        assert!(guard.allows(), "too few turns for a verdict");
        let mut pauses = Vec::new();
        for _ in 0..200_000 {
            let was = guard.pause();
            play(&mut guard, 100, 8, 5);
            if was == 0 && guard.pause() > 0 {
                pauses.push(guard.next_pause / 2);
            }
            if pauses.len() == 6 {
                break;
            }
        }
        assert_eq!(pauses, [2_000, 4_000, 8_000, 16_000, 16_000, 16_000]);
    }

    #[test]
    fn a_trial_begins_with_what_is_seen_from_then_on() {
        let mut guard = Guard::default();
        play(&mut guard, 2_000, 8, 5);
        assert!(!guard.allows());
        play(&mut guard, FIRST_PAUSE, 100, 0);
        assert!(guard.allows());
        play(&mut guard, 20_000, 5, 8);
        assert!(guard.allows());
    }
}
