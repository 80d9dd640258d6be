//! ρ: prefill work routed to a worker, as a share of its time.
//!
//! An exponentially weighted sum with time constant τ: a worker that is given x ms of work every ms reaches ρ = x. A
//! sum younger than the window is divided by the current weight of a full window, `τ·(1 − e^{−age/τ})`, or a busy fleet
//! would look idle after a restart; but by at least a fifth of τ, since one request does not determine a rate.

use crate::units::Millis;

/// Utilisation of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Utilisation {
    tau: Millis,
    work: f64,
    /// Pieces of work, with the same decay.
    pieces: f64,
    at: Millis,
    /// Time of the first work, or of the start.
    since: Option<Millis>,
}

/// Upper bound on the work, in windows: ρ is then a hundred, and falls to one within five windows without work.
const MOST_WINDOWS: f64 = 100.0;
/// Lower bound on the divisor of a young estimate, as a share of a window.
const LEAST_WINDOW: f64 = 0.2;

impl Utilisation {
    /// Starts idle, with time constant `tau` (at least one millisecond).
    pub fn new(tau: Millis) -> Self {
        Self {
            tau: tau.max(Millis(1.0)),
            work: 0.0,
            pieces: 0.0,
            at: Millis::ZERO,
            since: None,
        }
    }

    /// Starts a worker at the mean and window of the others, so that a burst after a quiet time counts alike on all.
    pub fn beside(tau: Millis, now: Millis, others: impl IntoIterator<Item = Self>) -> Self {
        let mut mean = Self::new(tau);
        let (mut count, mut since) = (0.0f64, now);
        for other in others {
            count += 1.0;
            mean.work += other.work * other.faded(now);
            mean.pieces += other.pieces * other.faded(now);
            since = other.since.map_or(since, |other| other.min(since));
        }
        mean.work /= count.max(1.0);
        mean.pieces /= count.max(1.0);
        (mean.at, mean.since) = (now, Some(since));
        mean
    }

    /// Adds work of this predicted length, routed to the worker.
    pub fn add(&mut self, now: Millis, work: Millis) {
        let faded = self.faded(now);
        self.work = (self.work * faded + work.0).min(MOST_WINDOWS * self.tau.0);
        self.pieces = self.pieces * faded + 1.0;
        self.at = now.max(self.at);
        self.since.get_or_insert(now);
    }

    /// Returns ρ now. It can exceed 1: work can be routed faster than it is done.
    pub fn at(&self, now: Millis) -> f64 {
        let age = self.since.map_or(Millis::ZERO, |since| now.saturating_sub(since));
        let window = (1.0 - (-age.0 / self.tau.0).exp()).max(LEAST_WINDOW);
        self.work * self.faded(now) / (self.tau.0 * window)
    }

    /// Returns S̄: the mean piece of work in the window; zero before the first.
    pub fn mean_work(&self) -> Millis {
        if self.pieces > 0.0 {
            Millis(self.work / self.pieces)
        } else {
            Millis::ZERO
        }
    }

    fn faded(&self, now: Millis) -> f64 {
        (-now.saturating_sub(self.at).0 / self.tau.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_flow_settles_at_its_share() {
        let mut rho = Utilisation::new(Millis(1000.0));
        for step in 0..2000 {
            rho.add(Millis(f64::from(step) * 10.0), Millis(7.0));
        }
        assert!((rho.at(Millis(20_000.0)) - 0.7).abs() < 0.01);
    }

    #[test]
    fn absurd_work_is_forgotten_within_some_windows() {
        let mut rho = Utilisation::new(Millis(1000.0));
        rho.add(Millis(10_000.0), Millis(1e11));
        rho.add(Millis(10_000.0), Millis(1e11));
        assert!(rho.at(Millis(10_000.0)) <= MOST_WINDOWS / LEAST_WINDOW);
        assert!(rho.at(Millis(16_000.0)) < 0.5);
    }

    #[test]
    fn a_busy_worker_looks_busy_soon() {
        let mut rho = Utilisation::new(Millis(100_000.0));
        for step in 0..3000 {
            rho.add(Millis(f64::from(step) * 10.0), Millis(7.0));
        }
        assert!((rho.at(Millis(30_000.0)) - 0.7).abs() < 0.05);
    }

    #[test]
    fn an_idle_worker_forgets() {
        let mut rho = Utilisation::new(Millis(1000.0));
        rho.add(Millis(0.0), Millis(100.0));
        assert!((rho.at(Millis(0.0)) - 0.5).abs() < 1e-12);
        assert!(rho.at(Millis(10_000.0)) < 1e-4);
    }

    #[test]
    fn a_worker_that_begins_beside_others_counts_as_their_mean_over_the_same_window() {
        let tau = Millis(60_000.0);
        let mut others = [Utilisation::new(tau); 2];
        for step in 0..1000 {
            others[0].add(Millis(f64::from(step) * 1000.0), Millis(300.0));
            others[1].add(Millis(f64::from(step) * 1000.0), Millis(500.0));
        }
        let now = Millis(1_000_000.0);
        let mut late = Utilisation::beside(tau, now, others);
        assert!((late.at(now) - 0.4).abs() < 0.01, "{}", late.at(now));
        assert!((late.mean_work().0 - 400.0).abs() < 1e-9);
        // After a quiet time the same work makes each of them equally busy.
        let now = Millis(2_000_000.0);
        late.add(now, Millis(500.0));
        others[0].add(now, Millis(500.0));
        assert!((late.at(now) - others[0].at(now)).abs() < 1e-6);
        let alone = Utilisation::beside(tau, now, []);
        assert_eq!((alone.at(now), alone.mean_work()), (0.0, Millis::ZERO));
    }

    #[test]
    fn a_clock_that_steps_back_changes_nothing() {
        let mut rho = Utilisation::new(Millis(1000.0));
        rho.add(Millis(5000.0), Millis(100.0));
        assert!((rho.at(Millis(0.0)) - 0.5).abs() < 1e-12);
    }
}
