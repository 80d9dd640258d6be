//! Whether a worker may be given work: a judgement over several probes, never over one.
//!
//! One failed probe says little (a busy engine answers late), so it takes `unhealthy_after` failures in a row to take a
//! worker out and `healthy_after` successes in a row to bring it back. The very first success is enough to begin.

use std::num::NonZeroU32;

/// The state of one worker's health.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    unhealthy_after: u32,
    healthy_after: u32,
    /// `None` until the first success.
    ready: Option<bool>,
    /// Observations in a row that contradict `ready`.
    streak: u32,
}

impl Health {
    /// Nothing known yet.
    #[must_use]
    pub fn new(unhealthy_after: NonZeroU32, healthy_after: NonZeroU32) -> Self {
        Self {
            unhealthy_after: unhealthy_after.get(),
            healthy_after: healthy_after.get(),
            ready: None,
            streak: 0,
        }
    }

    /// Whether the worker may be given work.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// Takes one observation; returns the new readiness if it changed.
    pub fn observe(&mut self, healthy: bool) -> Option<bool> {
        let (contradicts, needed) = match self.ready {
            None if healthy => (true, 1),
            None => (false, 1),
            Some(true) => (!healthy, self.unhealthy_after),
            Some(false) => (healthy, self.healthy_after),
        };
        self.streak = if contradicts { self.streak + 1 } else { 0 };
        if self.streak < needed {
            return None;
        }
        self.streak = 0;
        self.ready = Some(healthy);
        Some(healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(unhealthy_after: u32, healthy_after: u32) -> Health {
        Health::new(
            NonZeroU32::new(unhealthy_after).unwrap(),
            NonZeroU32::new(healthy_after).unwrap(),
        )
    }

    #[test]
    fn the_first_success_is_enough_to_begin() {
        let mut health = health(3, 3);
        assert!(!health.is_ready());
        assert_eq!(health.observe(false), None);
        assert_eq!(health.observe(true), Some(true));
        assert!(health.is_ready());
    }

    #[test]
    fn it_takes_failures_in_a_row_to_go_and_successes_in_a_row_to_return() {
        let mut health = health(3, 2);
        health.observe(true);
        let seen: Vec<_> = [
            false, false, true, false, false, false, false, true, false, true, true,
        ]
        .into_iter()
        .map(|healthy| health.observe(healthy))
        .collect();
        let mut expected = [None; 11];
        expected[5] = Some(false);
        expected[10] = Some(true);
        assert_eq!(seen, expected);
    }
}
