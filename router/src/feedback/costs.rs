//! α, β, γ of each worker, from the answers that tell what their prefill took.
//!
//! Two kinds of answer tell it: one whose engine says so itself (vLLM's per-request metrics), and one whose first token
//! was timed while its request was the head of the worker's queue all the time, so that the time since the one before it
//! is its own ([`policy::estimate::PendingWork::first_token`]). Where no answer tells it, what the engine counts of all of
//! them does ([`super::Counters`]). All see batching engines with noise: two prompts computed in one step share its time. The
//! regression clips what does not fit and follows what keeps coming.
//!
//! # Equal until shown otherwise
//! Workers of a pool are mostly the same machine. Costs learned apart differ by noise, and a choice among idle workers
//! that goes by noise sends every new conversation to the same one and leaves the caches of the others empty. So what is
//! published of a worker is the cost of the pool's median worker, unless its own prediction for a typical prompt lies
//! more than [`ALIKE`] and two standard errors from it. A worker with fewer than [`TRUSTED`] answers that nobody measured
//! is believed to be like the others; as long as all are such, the median of those that have answered at all is.
//!
//! # Beside queue and prefill
//! Times that an engine tells leave out HTTP on both sides and its own hand-over, so a β learned from them does, too.
//! What a first token took beyond them is learned apart ([`policy::estimate::Overhead`]) and added to every prediction. A
//! sample of the router's own clock has it in it. It is published like the cost: the pool's median, unless a worker's own
//! is apart by more than [`ALIKE`] of a typical prefill.

use policy::cost::PrefillCost;
use policy::estimate::{LearnedCost, Overhead, PrefillSize, pooled};
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use serde::Serialize;

/// Answers after which a worker's cost is its own, and counts for others of its pool.
const TRUSTED: u64 = 16;
/// Share by which workers may differ and still be taken for the same machine.
const ALIKE: f64 = 0.08;
/// Standard errors by which they may.
const ERRORS: f64 = 2.0;
/// Samples by the router's clock after which β is taken to be of that clock.
const UNTOLD: u32 = 8;
/// Answers that the typical prompt remembers.
const MEMORY: f64 = 200.0;

/// What a prefill took, and who says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// The engine's own clock.
    Engine(Millis),
    /// The router's, of a request that had the worker to itself.
    Clean(Millis),
    /// The engine's counters, of several answers: their mean.
    Counters(Millis),
}

impl Sample {
    /// The name of the source in metrics.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::Clean(_) => "clean",
            Self::Counters(_) => "counters",
        }
    }

    fn took(self) -> Millis {
        let (Self::Engine(took) | Self::Clean(took) | Self::Counters(took)) = self;
        took
    }
}

/// One worker's cost, as it explains itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostState {
    /// What is believed now.
    #[serde(flatten)]
    pub cost: PrefillCost,
    /// What its first tokens take beside queue and prefill, where it tells those itself; else it is in β.
    pub overhead_ms: f64,
    /// Mean absolute error of predicting a prefill with it.
    pub error_ms: f64,
    /// Answers learned from.
    pub answers: u64,
}

/// The costs of all workers, by slot.
#[derive(Debug)]
pub struct Costs {
    workers: Vec<One>,
    /// Uncached and cached tokens of the mean prompt, over so many answers.
    typical: (f64, f64, f64),
}

#[derive(Debug)]
struct One {
    learned: LearnedCost,
    beside: Overhead,
    /// It has told what a prefill took by its own clock, so what is beside that is not in β.
    tells: bool,
    /// Samples by the router's clock since it did.
    untold: u32,
    /// Somebody measured or wrote where it began.
    known: bool,
    /// When it last taught something, or faded.
    renewed: Millis,
}

impl One {
    /// Begins with what was measured or written; else with the median of the others.
    fn new(worker: &config::Worker, pool: Option<PrefillCost>) -> Self {
        Self {
            learned: match pool {
                _ if worker.cost_is_known => LearnedCost::new(worker.cost),
                Some(median) => LearnedCost::new(median),
                None => LearnedCost::guess(worker.cost),
            },
            beside: Overhead::default(),
            tells: false,
            untold: 0,
            known: worker.cost_is_known,
            renewed: Millis::ZERO,
        }
    }

    /// A late first token is a sample of the router's clock from a worker that tells its own times otherwise, so one of
    /// those does not yet mean that it has stopped.
    fn heard(&mut self, sample: Sample) {
        if matches!(sample, Sample::Clean(_)) {
            self.untold = self.untold.saturating_add(1);
            self.tells &= self.untold < UNTOLD;
        } else {
            (self.tells, self.untold) = (true, 0);
        }
    }

    /// What is to be added to its predictions.
    fn overhead(&self) -> Millis {
        if self.tells {
            self.beside.expected()
        } else {
            Millis::ZERO
        }
    }

    /// Whether it says anything of others.
    fn counts(&self) -> bool {
        self.learned.seen() >= TRUSTED
    }
}

impl Costs {
    /// Begins with what is configured; a worker of which nobody said anything begins with the median of the others.
    #[must_use]
    pub fn new(workers: &[config::Worker]) -> Self {
        let known: Vec<PrefillCost> = workers
            .iter()
            .filter(|worker| worker.cost_is_known)
            .map(|worker| worker.cost)
            .collect();
        let pool = pooled(&known);
        Self {
            workers: workers.iter().map(|worker| One::new(worker, pool)).collect(),
            typical: (0.0, 0.0, 0.0),
        }
    }

    /// A worker takes a slot: the next free one, or one whose last holder is gone.
    pub fn admit(&mut self, worker: WorkerId, spec: &config::Worker) {
        let (u, h) = (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64));
        let one = || One::new(spec, None);
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, one);
        }
        let pool = self.median(u, h).map(|(pool, _)| pool);
        self.workers[worker.index()] = One::new(spec, pool);
    }

    /// Somebody has measured a worker: what it taught before is forgotten.
    pub fn calibrate(&mut self, worker: WorkerId, measured: PrefillCost) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::new(measured);
            one.known = true;
        }
    }

    /// A worker is gone: it says nothing of the others any more.
    pub fn vacate(&mut self, worker: WorkerId) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::guess(one.learned.cost());
            (one.beside, one.tells) = (Overhead::default(), false);
            one.known = false;
        }
    }

    /// Learns from an answer, or from the mean of several.
    pub fn observe(&mut self, now: Millis, worker: WorkerId, size: PrefillSize, sample: Sample) {
        let Some(one) = self.workers.get_mut(worker.index()) else {
            return;
        };
        // The mean of prompts on a floor and above it lies on neither: it teaches nothing.
        if matches!(sample, Sample::Counters(_)) && one.learned.cost().floor_ms > 0.0 {
            return;
        }
        one.learned.observe_size(size, sample.took());
        one.renewed = now;
        one.heard(sample);
        let (u, h, count) = &mut self.typical;
        *count = (*count + 1.0).min(MEMORY);
        *u += (size.uncached - *u) / *count;
        *h += (size.cached() - *h) / *count;
    }

    /// A first token took so much beside the queue and the prefill that its engine told of.
    pub fn beside(&mut self, worker: WorkerId, took: Millis) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.beside.observe(took);
        }
    }

    /// What each worker's first tokens are believed to take beside queue and prefill, by slot.
    #[must_use]
    pub fn overheads(&self) -> Vec<Millis> {
        let (u, h) = (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64));
        let typical = self.median(u, h).map_or(0.0, |(_, typical)| typical.0);
        let mut told: Vec<f64> = self
            .workers
            .iter()
            .filter(|one| one.tells && one.beside.seen() >= TRUSTED)
            .map(|one| one.beside.expected().0)
            .collect();
        told.sort_unstable_by(f64::total_cmp);
        let median = told.get(told.len().saturating_sub(1) / 2).copied();
        let believed = |one: &One| match median {
            Some(median) if one.tells && (one.overhead().0 - median).abs() <= ALIKE * typical => {
                Millis(median)
            }
            _ => one.overhead(),
        };
        self.workers.iter().map(believed).collect()
    }

    /// What each worker's prefill is believed to cost, by slot.
    #[must_use]
    pub fn published(&self) -> Vec<PrefillCost> {
        let (u, h) = (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64));
        let median = self.median(u, h);
        let believed = |one: &One| match median {
            Some((pool, typical)) => {
                let (own, error) = one.learned.predict(u, h);
                let apart = (own.0 - typical.0).abs();
                let alike = apart <= ALIKE * typical.0 + ERRORS * error.0;
                let unknown = !one.known && !one.counts();
                if unknown || (one.counts() && alike) {
                    pool
                } else {
                    one.learned.cost()
                }
            }
            None => one.learned.cost(),
        };
        self.workers.iter().map(believed).collect()
    }

    /// The worker whose prediction for the typical prompt is the median: its cost, and that prediction.
    fn median(&self, u: Tokens, h: Tokens) -> Option<(PrefillCost, Millis)> {
        let any = self.workers.iter().any(One::counts);
        let mut all: Vec<(PrefillCost, Millis)> = self
            .workers
            .iter()
            .filter(|one| one.counts() || (!any && one.learned.seen() > 0))
            .map(|one| (one.learned.cost(), one.learned.predict(u, h).0))
            .collect();
        all.sort_unstable_by(|a, b| a.1.0.total_cmp(&b.1.0));
        // Of two the faster one: a slow one is the exception.
        all.get(all.len().saturating_sub(1) / 2).copied()
    }

    /// A worker that nothing is known of has become ready: it begins to learn where the others are.
    pub fn introduce(&mut self, worker: WorkerId) {
        let (u, h) = (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64));
        let median = self.median(u, h);
        if let Some(one) = self.workers.get_mut(worker.index())
            && !one.known
            && let Some((pool, _)) = median
        {
            one.learned.begin_with(pool);
        }
    }

    /// What has not been renewed for a half-life goes half way back. Returns whether anything did.
    pub fn fade(&mut self, now: Millis, half_life: Millis) -> bool {
        let mut any = false;
        for one in &mut self.workers {
            if one.learned.seen() > 0 && now.saturating_sub(one.renewed) >= half_life {
                one.learned.fade(0.5);
                one.renewed = now;
                any = true;
            }
        }
        any
    }

    /// A worker's cost and its error.
    #[must_use]
    pub fn state(&self, worker: WorkerId) -> Option<CostState> {
        let one = self.workers.get(worker.index())?;
        let learned = &one.learned;
        Some(CostState {
            cost: learned.cost(),
            overhead_ms: one.overhead().0,
            error_ms: learned.error().0,
            answers: learned.seen(),
        })
    }
}

#[cfg(test)]
mod tests {
    use config::{Overrides, load_file};

    use super::*;

    fn costs(known: &[Option<f64>]) -> Costs {
        let workers = (0..known.len()).map(|at| format!("http://w{at}:1")).collect();
        let overrides = Overrides {
            workers,
            ..Overrides::default()
        };
        let mut config = load_file(None, std::collections::BTreeMap::new(), overrides).unwrap();
        for (worker, alpha) in config.workers.iter_mut().zip(known) {
            worker.cost_is_known = alpha.is_some();
            worker.cost = PrefillCost::linear(alpha.unwrap_or(9.0), 5.0);
        }
        Costs::new(&config.workers)
    }

    #[test]
    fn counters_teach_nothing_of_a_worker_with_a_floor() {
        let mut costs = costs(&[Some(0.02), Some(0.02)]);
        let with_floor = PrefillCost {
            floor_ms: 20.0,
            ..PrefillCost::linear(0.02, 6.0)
        };
        costs.calibrate(WorkerId(0), with_floor);
        let size = PrefillSize::of(Tokens(1090), Tokens::ZERO);
        for slot in [0, 1] {
            costs.observe(Millis::ZERO, WorkerId(slot), size, Sample::Counters(Millis(38.6)));
        }
        let [floored, plain] = [0, 1].map(|slot| costs.state(WorkerId(slot)).unwrap());
        assert_eq!((floored.cost, floored.answers), (with_floor, 0));
        assert_eq!(plain.answers, 1);
    }

    fn alpha(costs: &Costs, slot: u32) -> f64 {
        costs.state(WorkerId(slot)).unwrap().cost.alpha_ms_per_token
    }

    fn teach(costs: &mut Costs, slot: u32, alpha: f64, answers: u64) {
        for i in 0..answers {
            let u = 100 + i * 37 % 900;
            let took = Millis(5.0 + alpha * u as f64);
            costs.observe(
                Millis(i as f64),
                WorkerId(slot),
                PrefillSize::of(Tokens(u), Tokens(0)),
                Sample::Clean(took),
            );
        }
    }

    #[test]
    fn a_worker_of_which_nothing_is_known_begins_as_the_others_are() {
        let costs = costs(&[Some(0.1), None, Some(0.3), Some(0.2)]);
        assert_eq!(alpha(&costs, 1), 0.2);
        assert_eq!(alpha(&costs, 0), 0.1);
    }

    fn tell(costs: &mut Costs, slot: u32, beside: f64, answers: u64) {
        for i in 0..answers {
            let u = 100 + i * 37 % 900;
            let size = PrefillSize::of(Tokens(u), Tokens(0));
            costs.observe(
                Millis(i as f64),
                WorkerId(slot),
                size,
                Sample::Engine(Millis(5.0 + 0.1 * u as f64)),
            );
            costs.beside(WorkerId(slot), Millis(beside));
        }
    }

    #[test]
    fn what_an_engine_leaves_out_of_its_times_is_added() {
        let mut costs = costs(&[Some(0.1)]);
        assert_eq!(costs.overheads(), [Millis::ZERO]);
        tell(&mut costs, 0, 4.0, 100);
        assert!(
            (costs.overheads()[0].0 - 4.0).abs() < 0.1,
            "{:?}",
            costs.overheads()
        );
        assert!((costs.state(WorkerId(0)).unwrap().overhead_ms - 4.0).abs() < 0.1);
    }

    #[test]
    fn it_is_in_beta_where_the_router_measures() {
        let mut costs = costs(&[Some(0.1)]);
        tell(&mut costs, 0, 4.0, 100);
        teach(&mut costs, 0, 0.1, 1);
        assert!(
            costs.overheads()[0].0 > 3.9,
            "one late first token is no new clock"
        );
        teach(&mut costs, 0, 0.1, 8);
        assert_eq!(costs.overheads(), [Millis::ZERO], "it does not tell any more");
        tell(&mut costs, 0, 4.0, 1);
        assert!(costs.overheads()[0].0 > 3.9);
    }

    #[test]
    fn overheads_that_differ_by_little_are_one() {
        let mut costs = costs(&[Some(0.1), Some(0.1), Some(0.1)]);
        for (slot, beside) in [(0, 4.0), (1, 4.5), (2, 40.0)] {
            tell(&mut costs, slot, beside, 100);
        }
        let [near, alike, far] = costs.overheads()[..] else {
            panic!()
        };
        assert_eq!(near, alike);
        assert!(far.0 > 35.0, "another zone is another overhead: {far:?}");
    }

    #[test]
    fn a_slot_that_changes_hands_has_no_overhead() {
        let mut costs = costs(&[Some(0.1)]);
        tell(&mut costs, 0, 4.0, 100);
        costs.vacate(WorkerId(0));
        assert_eq!(costs.overheads(), [Millis::ZERO]);
    }

    #[test]
    fn what_is_measured_counts_for_more_than_what_was_learned_before() {
        let mut costs = costs(&[Some(0.1), Some(0.1)]);
        teach(&mut costs, 0, 0.1, 100);
        teach(&mut costs, 1, 0.1, 100);
        let measured = PrefillCost::linear(0.3, 7.0);
        costs.calibrate(WorkerId(0), measured);
        let state = costs.state(WorkerId(0)).unwrap();
        assert!(
            (state.cost.beta_ms - 7.0).abs() < 1e-9 && (alpha(&costs, 0) - 0.3).abs() < 1e-9,
            "{state:?}"
        );
        assert_eq!(
            costs.published()[0],
            state.cost,
            "it is no noise around the others"
        );
        assert!((alpha(&costs, 1) / 0.1 - 1.0).abs() < 0.05);
        costs.calibrate(WorkerId(9), measured);
    }

    #[test]
    fn a_worker_that_comes_late_begins_with_what_the_others_learned() {
        let mut costs = costs(&[None, None, Some(0.5)]);
        teach(&mut costs, 0, 0.05, 100);
        costs.introduce(WorkerId(1));
        let begun = costs
            .state(WorkerId(1))
            .unwrap()
            .cost
            .prefill(Tokens(550), Tokens(0));
        assert!((begun.0 / 32.5 - 1.0).abs() < 0.25, "{begun}");
        // One that was measured is not made to forget it, and one that has answered knows better.
        costs.introduce(WorkerId(2));
        assert_eq!(alpha(&costs, 2), 0.5);
        teach(&mut costs, 1, 0.4, 100);
        costs.introduce(WorkerId(1));
        assert!(alpha(&costs, 1) > 0.3);
    }

    #[test]
    fn a_slot_that_changes_hands_begins_as_the_others_are_and_one_that_is_empty_says_nothing() {
        let mut costs = costs(&[None, None]);
        teach(&mut costs, 0, 0.05, 100);
        teach(&mut costs, 1, 0.9, 100);
        costs.vacate(WorkerId(1));
        let spec = load_file(
            None,
            std::collections::BTreeMap::new(),
            Overrides {
                workers: vec!["http://late:1".to_owned()],
                ..Overrides::default()
            },
        );
        let spec = spec.unwrap().workers.remove(0);
        for slot in [WorkerId(1), WorkerId(3)] {
            costs.admit(slot, &spec);
            let begun = costs.state(slot).unwrap();
            let prefill = begun.cost.prefill(Tokens(550), Tokens(0)).0;
            assert!(
                (prefill / 32.5 - 1.0).abs() < 0.25 && begun.answers == 0,
                "{begun:?}"
            );
        }
    }

    #[test]
    fn workers_that_differ_by_noise_are_equal_and_one_that_is_slow_is_not() {
        let mut costs = costs(&[None, None, None, None]);
        for (slot, alpha) in [(0, 0.100), (1, 0.103), (2, 0.5)] {
            teach(&mut costs, slot, alpha, 100);
        }
        let published: Vec<f64> = costs
            .published()
            .iter()
            .map(|cost| cost.alpha_ms_per_token)
            .collect();
        assert_eq!(published[0], published[1]);
        assert!((published[2] / published[0] - 5.0).abs() < 0.6, "{published:?}");
        assert_eq!(published[3], published[0], "nobody knows it yet");
    }

    #[test]
    fn a_worker_that_is_silent_is_believed_less_and_less() {
        let mut costs = costs(&[Some(0.1), Some(0.1)]);
        teach(&mut costs, 0, 0.9, 200);
        assert!(!costs.fade(Millis(1000.0), Millis(60_000.0)));
        assert!(costs.fade(Millis(61_000.0), Millis(60_000.0)));
        let faded = alpha(&costs, 0);
        assert!((faded - 0.5).abs() < 0.03, "{faded}");
        assert_eq!(alpha(&costs, 1), 0.1, "it never learned anything");
        assert!(!costs.fade(Millis(61_001.0), Millis(60_000.0)));
    }
}
