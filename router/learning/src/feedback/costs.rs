//! Learns α, β, γ of each worker from responses whose prefill time is known (docs/learning.md, "Worker cost").
//!
//! Prefill times are noisy on batching engines: two prompts computed in one step share its time. The regression clips
//! outliers and follows changes that persist.
//!
//! A worker is published with the cost of the pool's median worker, unless its own prediction for a typical prompt
//! differs by more than [`ALIKE`] and two standard errors. Otherwise noise would choose among idle workers and leave
//! the caches of the others empty.
//!
//! Without responses an estimate keeps its value, and the doubt about it grows ([`policy::estimate::Doubt`]). Published
//! is the value within that doubt nearest to the worker's measured or configured cost, else to the median. The median
//! is taken over workers with little doubt, where there are any: many old estimates must not outvote a new one. A
//! response halves the time without a response instead of clearing it, since a single one may be an outlier.
//!
//! Times reported by an engine leave out HTTP and its own hand-over, and so does a β learned from them. The rest of a
//! time to first token is learned as [`policy::estimate::Overhead`], and published like the cost.

mod kept;
mod slow;

pub use kept::{KeptCost, KeptPrompt};

use policy::cost::PrefillCost;
use policy::estimate::{Doubt, LearnedCost, Overhead, PrefillSize, Slowness, pooled};
use policy::ids::WorkerId;
use policy::stats::lower_median;
use policy::units::{Millis, Tokens};
use serde::Serialize;

/// Number of responses after which a worker's own cost is used, and counts towards the pool's median.
const TRUSTED: u64 = 16;
/// Relative difference up to which workers count as identical.
const ALIKE: f64 = 0.08;
/// Number of standard errors up to which workers count as identical.
const ERRORS: f64 = 2.0;
/// Number of samples by the router's clock after which β is assumed to include the overhead.
const UNTOLD: u32 = 8;
/// Memory of the typical prompt, in responses.
const MEMORY: f64 = 200.0;

/// A measured prefill time, by source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefillSample {
    /// The engine reported the time.
    Engine(Millis),
    /// The router measured the time of a request that had the worker to itself.
    Clean(Millis),
    /// The time is the mean over several responses, from the engine's counters.
    Counters(Millis),
}

impl PrefillSample {
    /// Returns the name of the source in metrics.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::Clean(_) => "clean",
            Self::Counters(_) => "counters",
        }
    }

    pub(super) fn took(self) -> Millis {
        let (Self::Engine(took) | Self::Clean(took) | Self::Counters(took)) = self;
        took
    }
}

/// Learned cost of one worker, as reported by the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostState {
    #[serde(flatten)]
    pub cost: PrefillCost,
    /// Time to first token beyond queue and prefill, for engines that report both; otherwise it is part of β.
    pub overhead_ms: f64,
    /// Error of the prediction for a typical prefill: the mean absolute error plus the doubt.
    pub error_ms: f64,
    /// Number of responses learned from.
    pub answers: u64,
}

/// The costs of all workers, by slot.
#[derive(Debug)]
pub struct Costs {
    workers: Vec<One>,
    /// Mean uncached and cached tokens of a prompt, and the number of responses behind them.
    typical: (f64, f64, f64),
    /// Time without a response after which a worker may have become twice as fast.
    fade: Millis,
}

#[derive(Debug)]
struct One {
    learned: LearnedCost,
    beside: Overhead,
    /// Whether the engine reports its prefill times, so that β leaves out the overhead.
    tells: bool,
    /// Number of samples by the router's clock since the engine last reported one.
    untold: u32,
    /// Whether the initial cost was measured or configured.
    known: bool,
    /// Start of the idle time: each response moves it half way to the present.
    renewed: Millis,
    doubt: Doubt,
    slowness: Slowness,
}

impl One {
    /// Creates the estimate of a worker with the measured or configured cost, else with the median of the others.
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
            slowness: Slowness::default(),
        }
    }

    /// Updates whether the engine reports its times. A few times by the router's clock between them do not change that.
    fn heard(&mut self, sample: PrefillSample) {
        if matches!(sample, PrefillSample::Clean(_)) {
            self.untold = self.untold.saturating_add(1);
            self.tells &= self.untold < UNTOLD;
        } else {
            (self.tells, self.untold) = (true, 0);
        }
    }

    fn overhead(&self) -> Millis {
        if self.tells {
            self.beside.expected()
        } else {
            Millis::ZERO
        }
    }

    fn elapse(&mut self, now: Millis, fade: Millis) {
        let has_answered = self.learned.seen() > 0;
        self.doubt = if has_answered {
            Doubt::after(now.saturating_sub(self.renewed), fade)
        } else {
            Doubt::NONE
        };
    }

    /// Returns whether the worker counts towards the pool's median.
    fn counts(&self) -> bool {
        self.learned.seen() >= TRUSTED
    }

    /// Returns the cost to publish, given the typical prompt and the pool's median worker.
    fn believed(&self, u: Tokens, h: Tokens, median: MedianWorker) -> PrefillCost {
        let typical = median.prefill;
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
            false => median.cost,
            true if own > Millis::ZERO => self.learned.cost().times(nearest / own.0),
            true => self.learned.cost(),
        }
    }
}

/// The worker whose prediction for the typical prompt is the median of the pool.
#[derive(Clone, Copy)]
struct MedianWorker {
    cost: PrefillCost,
    prefill: Millis,
}

/// Returns the workers with little doubt, or all of them if none has.
fn with_little_doubt(mut workers: Vec<&One>) -> Vec<&One> {
    if workers.iter().any(|one| one.doubt.is_small()) {
        workers.retain(|one| one.doubt.is_small());
    }
    workers
}

impl Costs {
    /// Creates the estimates with the configured costs; that of a worker without one with the median of the others.
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

    /// Registers a worker in a slot: the next free one, or one whose previous worker was removed.
    pub fn admit(&mut self, worker: WorkerId, spec: &config::Worker) {
        let one = || One::new(spec, None);
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, one);
        }
        let pool = self.median().map(|median| median.cost);
        self.workers[worker.index()] = One::new(spec, pool);
    }

    /// Replaces a worker's cost by a measured one, and discards the learned one.
    pub fn calibrate(&mut self, worker: WorkerId, measured: PrefillCost) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::new(measured);
            (one.known, one.doubt, one.slowness) = (true, Doubt::NONE, Slowness::default());
        }
    }

    /// Removes a worker, so that it no longer affects the others.
    pub fn remove_worker(&mut self, worker: WorkerId) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.learned = LearnedCost::guess(one.learned.cost());
            (one.beside, one.tells) = (Overhead::default(), false);
            (one.known, one.doubt, one.slowness) = (false, Doubt::NONE, Slowness::default());
        }
    }

    /// Learns from a response, or from the mean of several.
    pub fn observe(&mut self, now: Millis, worker: WorkerId, size: PrefillSize, sample: PrefillSample) {
        let Some(one) = self.workers.get_mut(worker.index()) else {
            return;
        };
        // A mean over prompts below and above the cost's floor follows neither regime.
        if matches!(sample, PrefillSample::Counters(_)) && one.learned.cost().floor_ms > 0.0 {
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

    /// Records the time to first token beyond the queue and prefill times that the engine reported.
    pub fn beside(&mut self, worker: WorkerId, took: Millis) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            one.beside.observe(one.doubt, took);
        }
    }

    /// Updates the doubt of all workers. Returns whether any is doubtful.
    pub fn elapse(&mut self, now: Millis) -> bool {
        for one in &mut self.workers {
            one.elapse(now, self.fade);
        }
        self.workers.iter().any(|one| one.doubt > Doubt::NONE)
    }

    fn typical(&self) -> (Tokens, Tokens) {
        (Tokens(self.typical.0 as u64), Tokens(self.typical.1 as u64))
    }

    /// Returns each worker's overhead beside queue and prefill, by slot.
    #[must_use]
    pub fn overheads(&self) -> Vec<Millis> {
        let typical = self.median().map_or(0.0, |median| median.prefill.0);
        let tells = |one: &&One| one.tells && one.beside.seen() >= TRUSTED;
        let told = with_little_doubt(self.workers.iter().filter(tells).collect());
        let median = lower_median(told.iter().map(|one| one.beside.expected().0));
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

    /// Returns each worker's published prefill cost, by slot.
    #[must_use]
    pub fn published(&self) -> Vec<PrefillCost> {
        let ((u, h), median) = (self.typical(), self.median());
        let believed = |one: &One| match median {
            Some(median) => one.believed(u, h, median),
            None => one.learned.cost(),
        };
        self.workers.iter().map(believed).collect()
    }

    /// Returns the pool's median worker, of those with [`TRUSTED`] responses, else a known cost, else any response.
    fn median(&self) -> Option<MedianWorker> {
        let (u, h) = self.typical();
        let of = |counts: fn(&One) -> bool| self.workers.iter().filter(move |one| counts(one)).collect();
        let mut all: Vec<&One> = with_little_doubt(of(One::counts));
        if all.is_empty() {
            all = of(|one| one.known);
        }
        if all.is_empty() {
            all = of(|one| one.learned.seen() > 0);
        }
        let predicted = |one: &&One| MedianWorker {
            cost: one.learned.cost(),
            prefill: one.learned.predict(u, h).0,
        };
        let mut all: Vec<MedianWorker> = all.iter().map(predicted).collect();
        all.sort_unstable_by(|a, b| a.prefill.0.total_cmp(&b.prefill.0));
        // Of an even number, the faster of the middle two: a slow worker is the exception.
        all.get(all.len().saturating_sub(1) / 2).copied()
    }

    /// Sets a new worker without a known cost to the median of the others.
    pub fn introduce(&mut self, worker: WorkerId) {
        let median = self.median();
        if let Some(one) = self.workers.get_mut(worker.index())
            && !one.known
            && let Some(median) = median
        {
            one.learned.begin_with(median.cost);
        }
    }

    /// Returns a worker's learned cost; `None` for an unknown slot.
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
