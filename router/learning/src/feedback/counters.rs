//! Prefill counters of engines, for workers whose responses do not report their prefill time (docs/learning.md).
//!
//! Between two readings they grow by sums over the requests that ended in between, and so does the right side of the
//! cost model:
//!
//! ```text
//! Σ took = n·β + α·Σ u + γ·Σ u·(h + u/2)
//! ```
//!
//! Divided by n this is one observation with mean sizes. n and Σ u come from the engine. No engine counts the last sum,
//! so it is the mean over this router's own responses of the interval, scaled by the ratio of the engine's mean u to
//! theirs. An interval ends as soon as both sides have counted the same requests, or once there are [`ENOUGH`] own
//! responses and the engine's mean prompt is similar to theirs; otherwise it is discarded after [`PATIENCE`].
//!
//! Rejected: `Δ took / Δ tokens` for α, which charges the constant cost of a request to its tokens; and mixing both
//! sources: a response's own time belongs to one prompt and one moment ([`TELLING`]).

use policy::estimate::PrefillSize;
use policy::ids::WorkerId;
use policy::units::Millis;

/// Number of own responses that are needed where the engine has counted other requests too.
const ENOUGH: f64 = 8.0;
/// Largest factor between the engine's mean prompt and the mean of the own ones.
const ALIKE: f64 = 1.5;
/// Relative difference of tokens up to which both sides have counted the same requests, for engines that count only
/// tokens: templates and special tokens are not part of every count.
const SAME: f64 = 0.02;
/// Longest interval.
const PATIENCE: Millis = Millis(10_000.0);
/// Time after a response that reported its prefill time during which counters are ignored.
const TELLING: Millis = Millis(30_000.0);

/// Counter values of an engine since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Time of all prefills.
    pub took: Millis,
    /// Tokens that the prefills computed.
    pub tokens: f64,
    /// Number of requests; `None` where the engine counts steps.
    pub requests: Option<f64>,
}

impl Counted {
    /// Returns the growth since `base`; `None` if the engine was restarted in between.
    fn since(&self, base: &Self) -> Option<Self> {
        let grown = |now: f64, then: f64| Some(now - then).filter(|grown| *grown >= 0.0);
        Some(Self {
            took: Millis(grown(self.took.0, base.took.0)?),
            tokens: grown(self.tokens, base.tokens)?,
            requests: match (self.requests, base.requests) {
                (Some(now), Some(then)) => Some(grown(now, then)?),
                (None, None) => None,
                _ => return None,
            },
        })
    }
}

/// The counters of all workers, by slot.
#[derive(Debug)]
pub struct FleetCounters {
    workers: Vec<WorkerCounters>,
}

#[derive(Clone, Debug, Default)]
struct WorkerCounters {
    /// Start of the interval, and the counters' values at that time.
    base: Option<(Millis, Counted)>,
    own: ResponseSums,
    /// Time at which a response last reported its prefill time.
    told: Option<Millis>,
}

/// Sums over this router's responses.
#[derive(Clone, Copy, Debug, Default)]
struct ResponseSums {
    answers: f64,
    size: PrefillSize,
    /// Whether the cached tokens of any response were only predicted.
    predicted: bool,
}

impl WorkerCounters {
    fn begin(&mut self, now: Millis, counted: Counted) {
        self.base = Some((now, counted));
        self.own = ResponseSums::default();
    }
}

impl FleetCounters {
    /// Creates the counters of `workers` slots.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: vec![WorkerCounters::default(); workers],
        }
    }

    /// Registers a worker in a slot: the next free one, or one whose previous worker was removed.
    pub fn admit(&mut self, worker: WorkerId) {
        if self.workers.len() <= worker.index() {
            self.workers.resize(worker.index() + 1, WorkerCounters::default());
        }
        self.workers[worker.index()] = WorkerCounters::default();
    }

    /// Records a response: the size of its prompt, whether the worker reported the cached tokens (`said`), and whether
    /// it reported its prefill time (`told`).
    pub fn answered(&mut self, now: Millis, worker: WorkerId, size: PrefillSize, said: bool, told: bool) {
        let Some(one) = self.workers.get_mut(worker.index()) else {
            return;
        };
        one.own.answers += 1.0;
        one.own.size.uncached += size.uncached;
        one.own.size.pairs += size.pairs;
        one.own.predicted |= !said;
        if told {
            one.told = Some(now);
        }
    }

    /// Takes a reading of the engine's counters. Returns a mean prompt and its prefill time once the interval is
    /// usable.
    pub fn counted(
        &mut self,
        now: Millis,
        worker: WorkerId,
        counted: Counted,
    ) -> Option<(PrefillSize, Millis)> {
        let one = self.workers.get_mut(worker.index())?;
        let passed = one
            .base
            .and_then(|(since, base)| Some((since, counted.since(&base)?)));
        let telling = one.told.is_some_and(|told| now.saturating_sub(told) < TELLING);
        let Some((since, passed)) = passed.filter(|_| !telling) else {
            one.begin(now, counted);
            return None;
        };
        let mean = one.own.mean(&passed);
        if mean.is_some() || now.saturating_sub(since) > PATIENCE {
            one.begin(now, counted);
        }
        mean
    }

    /// Resets the counters of an unreachable worker, since its engine may restart them from zero.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            *one = WorkerCounters::default();
        }
    }
}

impl ResponseSums {
    /// Returns the mean prefill of these responses, if the engine counted the same requests or similar ones.
    fn mean(&self, passed: &Counted) -> Option<(PrefillSize, Millis)> {
        let own = PrefillSize {
            uncached: self.size.uncached / self.answers,
            pairs: self.size.pairs / self.answers,
        };
        if !(own.uncached > 0.0 && passed.tokens > 0.0 && passed.took > Millis::ZERO) {
            return None;
        }
        let more = passed.tokens / self.size.uncached;
        let (requests, same) = match passed.requests {
            Some(requests) => (requests, (requests - self.answers).abs() < 0.5),
            // Steps are attributed to requests by their tokens, so these must be known.
            None if self.predicted => return None,
            None => (self.answers * more, (more - 1.0).abs() < SAME),
        };
        let scale = passed.tokens / requests / own.uncached;
        if !(same || self.answers >= ENOUGH) || !(1.0 / ALIKE..=ALIKE).contains(&scale) {
            return None;
        }
        // The result is multiplied with predictions: where those are not corrected, this is not either.
        let scale = if self.predicted { 1.0 } else { scale };
        let size = PrefillSize {
            uncached: own.uncached * scale,
            pairs: own.pairs * scale,
        };
        Some((size, Millis(passed.took.0 / requests)))
    }
}

#[cfg(test)]
mod tests;
