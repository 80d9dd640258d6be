//! What engines count of their prefills, for workers whose answers do not tell what theirs took.
//!
//! An answer that comes in one piece has no first token to time, and on a busy worker few streams ever have it to
//! themselves; then, unless the engine reports times per request, no answer teaches. But engines count: vLLM of each
//! finished request how long its prefill took and how many tokens it computed (sums and counts of histograms on
//! `/metrics`), SGLang the time of its prefill steps and their tokens (`/v1/loads`). Between two looks those grow by sums
//! over the requests that ended in between, and so does the model's right side:
//!
//! ```text
//! Σ took = n·β + α·Σ u + γ·Σ u·(h + u/2)
//! ```
//!
//! Divided by n it is one answer to learn from, with means for sizes. n and Σ u are the engine's. The last sum nobody
//! counts, but this router knows the answers of its own that ended in between: their mean is taken, scaled as the
//! engine's mean u is to theirs.
//!
//! An interval is closed as soon as both have counted the same requests, or, where others use the worker too or many
//! requests are always on their way, once there are [`ENOUGH`] of this router's and the engine's mean prompt is like
//! theirs. One that does not come to that in [`PATIENCE`] teaches nothing.
//!
//! Rejected: `Δ took / Δ tokens` for α, which charges each token for what a request costs whatever its length, so that
//! short prompts make long ones look dear. And mixing the two sources: an answer's own time is of one prompt and says
//! when, so as long as answers tell, the counters are not listened to ([`TELLING`]).

use policy::estimate::PrefillSize;
use policy::ids::WorkerId;
use policy::units::Millis;

/// Own answers that are like enough to what the engine counted, if these are not the same.
const ENOUGH: f64 = 8.0;
/// Factor by which the engine's mean prompt may then differ from theirs, and in any case.
const ALIKE: f64 = 1.5;
/// Share by which tokens may differ if both are to have counted the same requests, where an engine counts only tokens:
/// templates and special tokens are not in everybody's count.
const SAME: f64 = 0.02;
/// The longest interval.
const PATIENCE: Millis = Millis(10_000.0);
/// For so long after an answer that told what its prefill took, answers are what is learned from.
const TELLING: Millis = Millis(30_000.0);

/// What an engine has counted since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Time of all prefills.
    pub took: Millis,
    /// Tokens that they computed.
    pub tokens: f64,
    /// Requests that they were of; `None` where steps are counted, not requests.
    pub requests: Option<f64>,
}

impl Counted {
    /// What was counted since; `None` if the engine started anew in between.
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
pub struct Counters {
    workers: Vec<One>,
}

#[derive(Clone, Debug, Default)]
struct One {
    /// When the interval began, and what the engine had counted then.
    base: Option<(Millis, Counted)>,
    /// The answers that have ended in it.
    own: Own,
    /// When an answer told what its prefill took.
    told: Option<Millis>,
}

/// Answers of this router: sums.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    answers: f64,
    size: PrefillSize,
    /// How much of some was cached is a prediction.
    predicted: bool,
}

impl One {
    fn begin(&mut self, now: Millis, counted: Counted) {
        self.base = Some((now, counted));
        self.own = Own::default();
    }
}

impl Counters {
    /// Nothing seen yet of so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            workers: vec![One::default(); workers],
        }
    }

    /// A worker takes a slot: the next free one, or one whose last holder is gone.
    pub fn admit(&mut self, worker: WorkerId) {
        if self.workers.len() <= worker.index() {
            self.workers.resize(worker.index() + 1, One::default());
        }
        self.workers[worker.index()] = One::default();
    }

    /// An answer ended: of which size its prompt was, whether the worker said how much of it was cached, and whether
    /// it told what its prefill took.
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

    /// The engine's counters as they stand. Returns what there is to learn: a mean prompt, and what its prefill took.
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

    /// The worker is away: it may come back having counted from zero.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(one) = self.workers.get_mut(worker.index()) {
            *one = One::default();
        }
    }
}

impl Own {
    /// What these answers' mean prefill took, if what the engine counted is of them, or of others like them.
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
            // Steps are charged to requests by their tokens, so these have to be known.
            None if self.predicted => return None,
            None => (self.answers * more, (more - 1.0).abs() < SAME),
        };
        let scale = passed.tokens / requests / own.uncached;
        if !(same || self.answers >= ENOUGH) || !(1.0 / ALIKE..=ALIKE).contains(&scale) {
            return None;
        }
        // What is learned will be multiplied with predictions: where these are not corrected, neither is this.
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
