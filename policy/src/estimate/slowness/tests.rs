use proptest::prelude::*;

use super::*;

/// Readings are half a second apart, with this many responses between them.
const EACH: u64 = 2;

/// A worker and its readings.
struct Watched {
    detector: Slowness,
    reading: Reading,
}

impl Watched {
    fn new() -> Self {
        let reading = Reading {
            now: Millis::ZERO,
            responses: 16,
            cost: PrefillCost::linear(0.05, 5.0),
            typical: [Tokens(500), Tokens::ZERO],
            error: Millis(0.3),
            measured: None,
            median: None,
        };
        Self {
            detector: Slowness::default(),
            reading,
        }
    }

    /// A worker that has been in use for an hour.
    fn settled() -> Self {
        let mut worker = Self::new();
        worker.run(3600.0, 1.0);
        worker
    }

    /// Lets time pass during which the worker's cost is `times` the initial one. Returns whether the worker is slow.
    fn run(&mut self, seconds: f64, times: f64) -> bool {
        self.run_beside(seconds, times, 1.0)
    }

    fn run_beside(&mut self, seconds: f64, times: f64, common: f64) -> bool {
        for _ in 0..(seconds * 2.0) as u32 {
            self.reading.now += Millis(500.0);
            self.reading.responses += EACH;
            self.reading.cost = PrefillCost::linear(0.05, 5.0).times(times);
            self.detector.observe(&self.reading, common);
        }
        self.is_slow()
    }

    fn is_slow(&self) -> bool {
        self.detector.slow().is_some()
    }
}

#[test]
fn a_worker_that_becomes_eight_times_slower_is_slow_after_five_seconds_and_recovers() {
    let mut worker = Watched::settled();
    let then = worker.reading.now;
    assert!(!worker.run(5.0, 8.0), "it is held for a while");
    assert!(worker.run(1.0, 8.0));
    let slow = worker.detector.slow().unwrap();
    assert!((slow.factor - 8.0).abs() < 1e-6, "{slow:?}");
    assert_eq!(
        (slow.against, slow.since),
        (Against::OwnPast, then + Millis(500.0))
    );
    assert!((slow.baseline.alpha_ms_per_token - 0.05).abs() < 1e-9);
    assert!((slow.typical.0 / slow.baseline_typical.0 - slow.factor).abs() < 1e-6);
    assert!(worker.run(600.0, 8.0), "a slow worker is no standard");
    assert!(worker.run(5.0, 1.0), "so is a recovery");
    assert!(!worker.run(1.0, 1.0));
}

#[test]
fn between_both_bounds_a_worker_stays_what_it_is() {
    let mut worker = Watched::settled();
    assert!(!worker.run(20.0, 1.45));
    assert!(worker.run(20.0, 1.6));
    assert!(worker.run(20.0, 1.4));
    assert!(!worker.run(20.0, 1.2));
}

#[test]
fn without_responses_nothing_changes() {
    let mut worker = Watched::settled();
    worker.run(1.0, 8.0);
    let idle = |worker: &mut Watched| {
        for _ in 0..1000 {
            worker.reading.now += Millis(500.0);
            worker.detector.observe(&worker.reading, 1.0);
        }
        worker.is_slow()
    };
    assert!(!idle(&mut worker), "two responses may be an exception");
    assert!(worker.run(2.0, 8.0));
    worker.reading.cost = PrefillCost::linear(0.05, 5.0);
    assert!(idle(&mut worker));
    assert!(!worker.run(6.0, 1.0));
}

#[test]
fn an_estimate_with_a_large_error_is_no_evidence() {
    let mut worker = Watched::settled();
    worker.reading.error = Millis(30.0);
    assert!(!worker.run(60.0, 2.0));
    worker.reading.error = Millis(1.0);
    assert!(worker.run(60.0, 2.0));
}

#[test]
fn a_worker_that_was_always_slow_is_compared_with_the_fleet() {
    let mut worker = Watched::new();
    worker.reading.median = Some(PrefillCost::linear(0.05, 5.0));
    assert!(worker.run(10.0, 3.0));
    let slow = worker.detector.slow().unwrap();
    assert_eq!(slow.against, Against::Fleet);
    assert!((slow.factor - 3.0).abs() < 1e-9);
    assert!(!worker.run(10.0, 1.0));
}

#[test]
fn of_both_baselines_the_workers_own_past_is_named() {
    let mut worker = Watched::settled();
    worker.reading.median = Some(PrefillCost::linear(0.04, 4.0));
    assert!(worker.run(6.0, 4.0));
    let slow = worker.detector.slow().unwrap();
    assert_eq!(slow.against, Against::OwnPast);
    assert!((slow.factor - 4.0).abs() < 1e-6, "{slow:?}");
    // It is at its own past again, and 1.3 times the fleet's median.
    worker.reading.median = Some(PrefillCost::linear(0.05 / 1.3, 5.0 / 1.3));
    assert!(worker.run(6.0, 1.0));
    assert_eq!(worker.detector.slow().unwrap().against, Against::Fleet);
}

#[test]
fn a_measured_worker_is_compared_with_its_measurement_only() {
    let mut worker = Watched::new();
    worker.reading.measured = Some(PrefillCost::linear(0.15, 15.0));
    worker.reading.median = Some(PrefillCost::linear(0.05, 5.0));
    assert!(!worker.run(60.0, 3.0), "it is another machine than the others");
    assert!(worker.run(60.0, 4.8));
    assert!((worker.detector.slow().unwrap().factor - 1.6).abs() < 1e-9);
}

#[test]
fn load_that_slows_all_workers_is_no_slowness_of_one() {
    let mut worker = Watched::settled();
    assert!(!worker.run_beside(60.0, 1.9, 1.9));
    let mut worker = Watched::settled();
    assert!(worker.run_beside(60.0, 8.0, 8.0), "no load does that");
    assert!((worker.detector.slow().unwrap().factor - 8.0).abs() < 1e-6);
    let mut worker = Watched::settled();
    assert!(worker.run_beside(60.0, 1.9, f64::NAN));
}

#[test]
fn a_change_over_many_hours_is_followed() {
    let mut worker = Watched::settled();
    for step in 0..40 {
        assert!(!worker.run(1200.0, 1.0 + f64::from(step) * 0.05), "{step}");
    }
}

#[test]
fn a_queue_is_charged_to_the_speed_that_is_missing() {
    // Two workers, one of them eight times slower; the other is nearly saturated.
    assert!(slowed_share(0.98, 0.5625) > 0.9);
    assert_eq!(slowed_share(1.2, 0.5625), 1.0);
    assert_eq!(
        slowed_share(2.0, 0.5625),
        0.0,
        "the load is too much even for a fleet without slow workers"
    );
    // One of sixteen matters only near saturation.
    assert!(slowed_share(0.5, 0.945) < 0.12);
    for utilisation in [0.0, 0.5, 0.99, 1.5] {
        assert_eq!(slowed_share(utilisation, 1.0), 0.0);
    }
}

proptest! {
    #[test]
    fn noise_below_the_bound_never_makes_a_worker_slow(
        noise in prop::collection::vec(0.85..1.25_f64, 200),
        common in 0.5..3.0_f64,
    ) {
        let mut worker = Watched::new();
        worker.reading.median = Some(PrefillCost::linear(0.05, 5.0));
        for times in noise {
            prop_assert!(!worker.run_beside(1.0, times, common));
        }
    }

    #[test]
    fn outliers_shorter_than_the_hold_never_make_a_worker_slow(
        spikes in prop::collection::vec((0.5..4.5_f64, 2.0..100.0_f64, 0.5..20.0_f64), 50),
    ) {
        let mut worker = Watched::settled();
        for (seconds, times, between) in spikes {
            prop_assert!(!worker.run(seconds, times));
            prop_assert!(!worker.run(between, 1.0));
        }
    }

    #[test]
    fn any_lasting_slowness_is_found_with_its_factor_and_its_end(times in 1.6..100.0_f64, age in 20.0..7200.0_f64) {
        let mut worker = Watched::new();
        worker.run(age, 1.0);
        prop_assert!(worker.run(6.0, times));
        let found = worker.detector.slow().unwrap();
        prop_assert!((found.factor / times - 1.0).abs() < 1e-6, "{:?}", found);
        prop_assert!(!worker.run(6.0, 1.0));
    }

    #[test]
    fn the_share_is_a_share_and_grows_with_what_is_missing(
        utilisation in 0.0..3.0_f64,
        speed in 0.01..1.0_f64,
        less in 0.01..1.0_f64,
    ) {
        let (one, more) = (slowed_share(utilisation, speed), slowed_share(utilisation, speed * less));
        prop_assert!((0.0..=1.0).contains(&one) && one <= more + 1e-12, "{one} {more}");
    }

    #[test]
    fn no_values_break_it(
        values in prop::collection::vec(prop::array::uniform4(prop::num::f64::ANY), 20),
        responses in prop::collection::vec(any::<u64>(), 20),
    ) {
        let mut detector = Slowness::default();
        for ([now, alpha, error, common], responses) in values.into_iter().zip(responses) {
            let cost = PrefillCost::linear(alpha, 1.0);
            let reading = Reading {
                now: Millis(now), responses, cost, error: Millis(error),
                typical: [Tokens(500), Tokens::ZERO], measured: None, median: Some(PrefillCost::linear(0.05, 5.0)),
            };
            detector.observe(&reading, common);
            prop_assert!(detector.slow().is_none_or(|slow| slow.factor >= 1.0));
        }
    }
}
