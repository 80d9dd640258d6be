//! Workers that have become slow.

use policy::estimate::{Reading, Slow};
use policy::stats::lower_median;
use policy::units::{Millis, Tokens};

use super::{Costs, MedianWorker, One};

impl Costs {
    /// Takes a reading of each worker. Returns how slow it is, by slot; `None` for a worker that is not slow.
    pub fn take_readings(&mut self, now: Millis) -> Vec<Option<Slow>> {
        let (u, h) = self.typical();
        let median = self.median();
        let reading = |one: &One| one.reading(now, [u, h], median);
        let changed = self.workers.iter().filter(|one| one.doubt.is_small());
        let common = lower_median(changed.filter_map(|one| one.slowness.times_past(&reading(one)?)));
        for one in &mut self.workers {
            if let Some(reading) = reading(one) {
                one.slowness.observe(&reading, common.unwrap_or(1.0));
            }
        }
        self.workers.iter().map(|one| one.slowness.slow()).collect()
    }
}

impl One {
    fn reading(&self, now: Millis, typical: [Tokens; 2], median: Option<MedianWorker>) -> Option<Reading> {
        let [u, h] = typical;
        self.counts().then(|| Reading {
            now,
            responses: self.learned.seen(),
            cost: self.learned.cost(),
            typical,
            error: self.learned.predict(u, h).1,
            measured: self.known.then(|| self.learned.began()),
            median: median.map(|median| median.cost),
        })
    }
}

#[cfg(test)]
mod tests {
    use policy::cost::PrefillCost;
    use policy::estimate::{Against, PrefillSize};
    use policy::ids::WorkerId;
    use proptest::prelude::*;

    use super::super::tests::costs;
    use super::super::{Costs, PrefillSample};
    use super::*;

    /// Time between two readings.
    const STEP_MS: f64 = 500.0;

    /// Costs, and the current time.
    struct Run {
        costs: Costs,
        now: f64,
        random: u64,
        /// Mean uncached tokens of a prompt, and the share by which they vary.
        prompts: [f64; 2],
    }

    impl Run {
        fn new(known: &[Option<f64>]) -> Self {
            Self {
                costs: costs(known),
                now: 0.0,
                random: 1,
                prompts: [550.0, 0.8],
            }
        }

        /// Returns a number between −1 and 1.
        fn noise(&mut self) -> f64 {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.random >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
        }

        /// Serves three turns of each worker per reading, whose times follow these values of α, up to a relative error
        /// of `spread`.
        fn serve(&mut self, seconds: f64, alphas: &[f64], spread: f64) -> Vec<Option<Slow>> {
            let mut found = Vec::new();
            for _ in 0..(seconds * 1e3 / STEP_MS) as u32 {
                self.now += STEP_MS;
                for (slot, alpha) in (0..).zip(alphas) {
                    for _ in 0..3 {
                        let [mean, varies] = self.prompts;
                        let u = Tokens((mean * (1.0 + varies * self.noise())) as u64);
                        let line = PrefillCost::linear(*alpha, alpha * 50.0);
                        let took = line.prefill(u, Tokens::ZERO).0 * (1.0 + spread * self.noise());
                        let size = PrefillSize::of(u, Tokens::ZERO);
                        self.costs.observe(
                            Millis(self.now),
                            WorkerId(slot),
                            size,
                            PrefillSample::Engine(Millis(took)),
                        );
                    }
                }
                found = self.costs.take_readings(Millis(self.now));
            }
            found
        }
    }

    #[test]
    fn the_one_that_becomes_slower_is_slow_and_recovers() {
        let mut run = Run::new(&[None, None, None]);
        assert_eq!(run.serve(60.0, &[0.05; 3], 0.2), [None; 3]);
        let found = run.serve(15.0, &[0.4, 0.05, 0.05], 0.2);
        let slow = found[0].expect("it is slow");
        assert!((6.0..10.0).contains(&slow.factor), "{slow:?}");
        assert!(
            (slow.baseline.alpha_ms_per_token / 0.05 - 1.0).abs() < 0.2,
            "{slow:?}"
        );
        assert_eq!(found[1..], [None; 2]);
        assert_eq!(run.serve(30.0, &[0.05; 3], 0.2), [None; 3]);
    }

    #[test]
    fn one_of_two_is_slow_even_if_it_was_from_the_beginning() {
        let mut run = Run::new(&[None, None]);
        let found = run.serve(30.0, &[0.05, 0.15], 0.1);
        assert_eq!((found[0], found[1].unwrap().against), (None, Against::Fleet));
    }

    #[test]
    fn a_measured_worker_may_be_another_machine() {
        let mut run = Run::new(&[Some(0.05), Some(0.15)]);
        assert_eq!(run.serve(60.0, &[0.05, 0.15], 0.1), [None; 2]);
        let found = run.serve(15.0, &[0.05, 0.3], 0.1);
        let slow = found[1].unwrap();
        assert_eq!((found[0], slow.against), (None, Against::OwnPast));
        // A measurement is a new beginning.
        run.costs.calibrate(WorkerId(1), PrefillCost::linear(0.3, 15.0));
        assert_eq!(run.serve(15.0, &[0.05, 0.3], 0.1), [None; 2]);
    }

    #[test]
    fn load_that_slows_all_is_no_slow_worker() {
        let mut run = Run::new(&[None, None, None]);
        run.serve(120.0, &[0.05; 3], 0.2);
        assert_eq!(run.serve(30.0, &[0.09; 3], 0.2), [None; 3]);
    }

    #[test]
    fn a_worker_that_takes_the_slot_of_a_slow_one_is_not_slow() {
        let mut run = Run::new(&[None, None]);
        assert!(run.serve(30.0, &[0.05, 0.4], 0.1)[1].is_some());
        run.costs.remove_worker(WorkerId(1));
        assert_eq!(run.costs.take_readings(Millis(run.now)), [None; 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn a_healthy_fleet_with_noise_has_no_slow_worker(
            alphas in prop::collection::vec(0.9..1.1_f64, 1..6),
            spread in 0.0..0.5_f64,
            prompts in (20.0..3000.0_f64, 0.0..0.9_f64),
            seed in any::<u64>(),
        ) {
            let mut run = Run::new(&vec![None; alphas.len()]);
            run.random = seed;
            run.prompts = prompts.into();
            let alphas: Vec<f64> = alphas.iter().map(|times| 0.05 * times).collect();
            for _ in 0..40 {
                let found = run.serve(2.0, &alphas, spread);
                prop_assert!(found.iter().all(Option::is_none), "{:?}", found);
            }
        }
    }
}
