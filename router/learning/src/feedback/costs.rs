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
//! # Time without an answer
//! A worker that is not used keeps its estimate, which becomes doubtful ([`policy::estimate::Doubt`]): what is published is
//! the value nearest to its anchor that the doubt allows, and the next answer weighs by the doubt. The anchor is what
//! somebody measured or wrote of the worker, else the pool's median. So a worker that is believed to be slow is equal to the
//! others after a while, and is given its share of the work that shows whether it still is. The median is that of workers
//! with little doubt, where there are any: many old estimates must not outvote a new one.
//!
//! An answer takes half of the time without an answer away rather than all of it, since a single one may be an outlier.
//!
//! # Beside queue and prefill
//! Times that an engine tells leave out HTTP on both sides and its own hand-over, so a β learned from them does, too.
//! What a first token took beyond them is learned apart ([`policy::estimate::Overhead`]) and added to every prediction. A
//! sample of the router's own clock has it in it. It is published like the cost: the pool's median, unless a worker's own
//! is apart by more than [`ALIKE`] of a typical prefill.

use policy::cost::PrefillCost;
use policy::estimate::{Doubt, LearnedCost, Overhead, PrefillSize, pooled};
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
    /// Error of predicting a typical prefill with it: the mean absolute one of its answers, and what time without any adds.
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
    /// Time without an answer after which a worker may have become twice as fast.
    fade: Millis,
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
    /// Since when it counts as idle: half way between the last answer and what this was before it.
    renewed: Millis,
    /// How far the estimate may be off because of the time since then.
    doubt: Doubt,
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
            doubt: Doubt::NONE,
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

    /// Time has passed, with an answer at the end of it or without.
    fn elapse(&mut self, now: Millis, fade: Millis) {
        let has_answered = self.learned.seen() > 0;
        self.doubt = if has_answered {
            Doubt::after(now.saturating_sub(self.renewed), fade)
        } else {
            Doubt::NONE
        };
    }

    /// Whether it says anything of others.
    fn counts(&self) -> bool {
        self.learned.seen() >= TRUSTED
    }

    /// The cost to publish, given the typical prompt, and the median worker's cost and prediction for it.
    fn believed(&self, (u, h): (Tokens, Tokens), (pool, typical): (PrefillCost, Millis)) -> PrefillCost {
        let (own, error) = self.learned.predict(u, h);
        let anchor = if self.known {
            self.learned.began().prefill(u, h)
        } else {
            typical
        };
        let nearest = self.doubt.nearest(own.0, anchor.0);
        let alike = (nearest - typical.0).abs() <= ALIKE * typical.0 + ERRORS * error.0;
        let is_own = if self.counts() { !alike } else { self.known };
        match is_own {
            false => pool,
            true if own > Millis::ZERO => self.learned.cost().times(nearest / own.0),
            true => self.learned.cost(),
        }
    }
}

/// The workers with little doubt, or all of them if each is doubtful.
fn with_little_doubt(mut workers: Vec<&One>) -> Vec<&One> {
    if workers.iter().any(|one| one.doubt.is_small()) {
        workers.retain(|one| one.doubt.is_small());
    }
    workers
}

impl Costs {
    /// Begins with what is configured; a worker of which nobody said anything begins with the median of the others.
    #[must_use]
    pub fn new(workers: &[config::Worker], fade: Millis) -> Self {
        let known: Vec<PrefillCost> = workers
            .iter()
            .filter(|worker| worker.cost_is_known)
            .map(|worker| worker.cost)
            .collect();
        let pool = pooled(&known);
        Self {
            workers: workers.iter().map(|worker| One::new(worker, pool)).collect(),
            typical: (0.0, 0.0, 0.0),
            fade,
        }
    }

    /// A worker takes a slot: the next free one, or one whose last holder is gone.
    pub fn admit(&mut self, worker: WorkerId, spec: &config::Worker) {
        let one = || One::new(spec, None);
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, one);
        }
        let pool = self.median().map(|(pool, _)| pool);
        self.workers[worker.index()] = One::new(spec, pool);
    }

    /// Somebody has measured a worker: what it taught before is forgotten.
    pub fn calibrate(&mut self, worker: WorkerId, measured: PrefillCost) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::new(measured);
            (one.known, one.doubt) = (true, Doubt::NONE);
        }
    }

    /// A worker is gone: it says nothing of the others any more.
    pub fn vacate(&mut self, worker: WorkerId) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::guess(one.learned.cost());
            (one.beside, one.tells) = (Overhead::default(), false);
            (one.known, one.doubt) = (false, Doubt::NONE);
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
        one.elapse(now, self.fade);
        one.learned.observe_after(one.doubt, size, sample.took());
        let idle = now.saturating_sub(one.renewed);
        one.renewed = if one.learned.seen() > 1 {
            now - Millis(idle.0 / 2.0)
        } else {
            now
        };
        one.elapse(now, self.fade);
        one.heard(sample);
        let (u, h, count) = &mut self.typical;
        *count = (*count + 1.0).min(MEMORY);
        *u += (size.uncached - *u) / *count;
        *h += (size.cached() - *h) / *count;
    }

    /// A first token took so much beside the queue and the prefill that its engine told of.
    pub fn beside(&mut self, worker: WorkerId, took: Millis) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.beside.observe(one.doubt, took);
        }
    }

    /// Time has passed: what was not renewed becomes doubtful, and stays what it is. Returns whether anything is doubtful.
    pub fn elapse(&mut self, now: Millis) -> bool {
        for one in &mut self.workers {
            one.elapse(now, self.fade);
        }
        self.workers.iter().any(|one| one.doubt > Doubt::NONE)
    }

    /// The typical prompt: tokens to compute, and cached ones.
    fn typical(&self) -> (Tokens, Tokens) {
        (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64))
    }

    /// What each worker's first tokens are believed to take beside queue and prefill, by slot.
    #[must_use]
    pub fn overheads(&self) -> Vec<Millis> {
        let typical = self.median().map_or(0.0, |(_, typical)| typical.0);
        let tells = |one: &&One| one.tells && one.beside.seen() >= TRUSTED;
        let told = with_little_doubt(self.workers.iter().filter(tells).collect());
        let mut told: Vec<f64> = told.iter().map(|one| one.beside.expected().0).collect();
        told.sort_unstable_by(f64::total_cmp);
        let median = told.get(told.len().saturating_sub(1) / 2).copied();
        let believed = |one: &One| {
            let (own, Some(median)) = (one.overhead().0, median) else {
                return one.overhead();
            };
            let nearest = one.doubt.nearest(own, median);
            let alike = one.tells && (nearest - median).abs() <= ALIKE * typical;
            Millis(if alike { median } else { nearest })
        };
        self.workers.iter().map(believed).collect()
    }

    /// What each worker's prefill is believed to cost, by slot.
    #[must_use]
    pub fn published(&self) -> Vec<PrefillCost> {
        let (prompt, median) = (self.typical(), self.median());
        let believed = |one: &One| match median {
            Some(median) => one.believed(prompt, median),
            None => one.learned.cost(),
        };
        self.workers.iter().map(believed).collect()
    }

    /// The worker whose prediction for the typical prompt is the median: its cost, and that prediction. Of those that have
    /// answered often enough, else of those that somebody measured, else of those that have answered at all.
    fn median(&self) -> Option<(PrefillCost, Millis)> {
        let (u, h) = self.typical();
        let of = |counts: fn(&One) -> bool| self.workers.iter().filter(move |one| counts(one)).collect();
        let mut all: Vec<&One> = with_little_doubt(of(One::counts));
        if all.is_empty() {
            all = of(|one| one.known);
        }
        if all.is_empty() {
            all = of(|one| one.learned.seen() > 0);
        }
        let predicted = |one: &&One| (one.learned.cost(), one.learned.predict(u, h).0);
        let mut all: Vec<(PrefillCost, Millis)> = all.iter().map(predicted).collect();
        all.sort_unstable_by(|a, b| a.1.0.total_cmp(&b.1.0));
        // Of two the faster one: a slow one is the exception.
        all.get(all.len().saturating_sub(1) / 2).copied()
    }

    /// A worker that nothing is known of has become ready: it begins to learn where the others are.
    pub fn introduce(&mut self, worker: WorkerId) {
        let median = self.median();
        if let Some(one) = self.workers.get_mut(worker.index())
            && !one.known
            && let Some((pool, _)) = median
        {
            one.learned.begin_with(pool);
        }
    }

    /// A worker's cost and its error.
    #[must_use]
    pub fn state(&self, worker: WorkerId) -> Option<CostState> {
        let one = self.workers.get(worker.index())?;
        let learned = &one.learned;
        let (u, h) = self.typical();
        let typical = learned.cost().prefill(u, h);
        Some(CostState {
            cost: learned.cost(),
            overhead_ms: one.overhead().0,
            error_ms: one.doubt.widens(typical.0, learned.error().0),
            answers: learned.seen(),
        })
    }
}

#[cfg(test)]
mod tests;
