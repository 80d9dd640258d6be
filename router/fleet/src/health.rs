//! Health of a worker, judged over several probes.
//!
//! A new worker is healthy after its first success. Engines answer probes from the thread that builds batches, so a
//! late probe while the worker has requests counts half, and does not take it out: a worker whose probes are [late](
//! Health::is_late) is passed over while others remain ([`rotation`](crate::rotation)).

use std::num::NonZeroU32;

use policy::units::Millis;

/// Outcome of a probe, or of a request that shows the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The worker is healthy.
    Well,
    /// The probe was not answered in time, but responses to requests arrive.
    Busy,
    /// The probe was not answered in time while the worker has requests.
    Late,
    /// The probe was refused, failed, or was not answered in time by an idle worker.
    Bad,
}

/// The failed probes of a worker since the last one that succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeFailure {
    /// Error of the last failed probe.
    pub error: String,
    /// Time of the first failed probe.
    pub since: Millis,
}

/// Health of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    unhealthy_after: u32,
    healthy_after: u32,
    /// `None` until the first success.
    ready: Option<bool>,
    /// Consecutive observations that contradict `ready`, in halves.
    streak: u32,
    late: bool,
}

impl Health {
    pub fn new(unhealthy_after: NonZeroU32, healthy_after: NonZeroU32) -> Self {
        Self {
            unhealthy_after: unhealthy_after.get(),
            healthy_after: healthy_after.get(),
            ready: None,
            streak: 0,
            late: false,
        }
    }

    /// Returns whether the worker is healthy.
    pub fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// Returns whether a healthy worker's probes are late.
    pub fn is_late(&self) -> bool {
        self.late && self.is_ready()
    }

    /// Records an observation. Returns the new readiness if it changed.
    pub fn observe(&mut self, probe: Probe) -> Option<bool> {
        let healthy = probe == Probe::Well;
        // In halves of an observation.
        let (weight, needed) = match (self.ready, probe) {
            (None, Probe::Well) => (2, 2),
            (None, _) => (0, 2),
            (Some(true), Probe::Well | Probe::Busy) => (0, 2),
            (Some(false), Probe::Busy | Probe::Late | Probe::Bad) => (0, 2),
            (Some(true), Probe::Late) => (1, self.unhealthy_after.saturating_mul(2)),
            (Some(true), Probe::Bad) => (2, self.unhealthy_after.saturating_mul(2)),
            (Some(false), Probe::Well) => (2, self.healthy_after.saturating_mul(2)),
        };
        self.streak = if weight > 0 {
            self.streak.saturating_add(weight)
        } else {
            0
        };
        if self.streak < needed {
            self.late &= weight > 0;
            return None;
        }
        self.late = probe == Probe::Late;
        if self.late {
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
        assert_eq!(health.observe(Probe::Bad), None);
        assert_eq!(health.observe(Probe::Well), Some(true));
        assert!(health.is_ready());
    }

    #[test]
    fn it_takes_failures_in_a_row_to_go_and_successes_in_a_row_to_return() {
        let mut health = health(3, 2);
        health.observe(Probe::Well);
        let seen: Vec<_> = [
            false, false, true, false, false, false, false, true, false, true, true,
        ]
        .into_iter()
        .map(|healthy| health.observe(if healthy { Probe::Well } else { Probe::Bad }))
        .collect();
        let mut expected = [None; 11];
        expected[5] = Some(false);
        expected[10] = Some(true);
        assert_eq!(seen, expected);
    }

    /// Regression, <https://github.com/sgl-project/sglang/pull/9198>: one late probe took a busy worker out.
    #[test]
    fn late_probes_do_not_take_a_busy_worker_out() {
        let mut health = health(3, 1);
        health.observe(Probe::Well);
        for _ in 0..5 {
            assert_eq!(health.observe(Probe::Late), None);
            assert!(!health.is_late());
        }
        for _ in 0..100 {
            assert_eq!(health.observe(Probe::Late), None);
            assert!(health.is_late() && health.is_ready());
        }
        for alive in [Probe::Well, Probe::Busy] {
            assert_eq!(health.observe(alive), None);
            assert!(!health.is_late());
            for _ in 0..6 {
                health.observe(Probe::Late);
            }
            assert!(health.is_late());
        }
        assert_eq!(health.observe(Probe::Bad), Some(false), "the next one decides");
        assert!(!health.is_late());
        for probe in [Probe::Late, Probe::Busy] {
            assert_eq!(health.observe(probe), None);
        }
        assert_eq!(health.observe(Probe::Well), Some(true));
        for probe in [Probe::Late, Probe::Late, Probe::Bad] {
            assert_eq!(health.observe(probe), None);
        }
        assert_eq!(
            health.observe(Probe::Bad),
            Some(false),
            "both count towards the same"
        );
    }
}
