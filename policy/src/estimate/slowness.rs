//! Detection of workers that have become slow.
//!
//! A worker's learned prefill cost for a typical prompt is compared with its *own past* and with the *fleet*, the cost
//! of the median worker (`docs/learning.md`). A measured worker, which may be another machine, is compared with its
//! past only.
//!
//! A worker is slow from 1.5 times a baseline on and until it is below 1.25 times both, each for five seconds and four
//! responses. To become slow, it must exceed the bound by two standard errors of its estimate. The mean does not move
//! while the worker is slow or about to be, so a slow worker does not become its own standard. Load slows all workers,
//! so a worker's own past is scaled by the change of the median worker, to twice at most.

use serde::{Deserialize, Serialize};

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

const SLOW: f64 = 1.5;
const RECOVERED: f64 = 1.25;
const HOLD: Millis = Millis(5_000.0);
const RESPONSES: u64 = 4;
const ERRORS: f64 = 2.0;
/// Time constant of a worker's own past, counted while it is in use.
const MEMORY: Millis = Millis(3_600_000.0);
/// Responses behind a worker's own past before it is a baseline.
const SETTLED: u64 = 32;
const LOAD: f64 = 2.0;

/// The baseline with which a worker is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The worker's measured or configured cost, or else the mean of its learned cost.
    OwnPast,
    /// The median worker.
    Fleet,
}

impl Against {
    /// Returns the name in the admin API and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OwnPast => "own past",
            Self::Fleet => "fleet",
        }
    }
}

/// The figures of a slow worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Time of a typical prefill, as a multiple of that at the baseline.
    pub factor: f64,
    /// Time of a typical prefill at the learned cost.
    pub typical: Millis,
    /// Time of a typical prefill at the baseline.
    pub baseline_typical: Millis,
    /// The learned cost.
    pub cost: PrefillCost,
    /// Baseline that the worker exceeds.
    pub against: Against,
    /// The cost at the baseline.
    pub baseline: PrefillCost,
    /// Time from which the worker has been slow.
    pub since: Millis,
}

/// A worker's figures at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Time of the reading.
    pub now: Millis,
    /// Responses learned from so far.
    pub responses: u64,
    /// The learned cost.
    pub cost: PrefillCost,
    /// Uncached and cached tokens of a typical prompt.
    pub typical: [Tokens; 2],
    /// Standard error of the prediction for such a prompt.
    pub error: Millis,
    /// The measured or configured cost.
    pub measured: Option<PrefillCost>,
    /// The cost of the median worker.
    pub median: Option<PrefillCost>,
}

impl Reading {
    fn prefill(&self, cost: &PrefillCost) -> f64 {
        let [uncached, cached] = self.typical;
        cost.prefill(uncached, cached).0
    }

    /// Returns the time of a typical prefill as a multiple of that at `baseline`, less `errors` standard errors.
    fn times(&self, baseline: &PrefillCost, errors: f64) -> f64 {
        let times = (self.prefill(&self.cost) - errors * self.error.0) / self.prefill(baseline);
        if times.is_finite() { times } else { 1.0 }
    }
}

/// The detector of one worker.
#[derive(Clone, Debug, Default)]
pub struct Slowness {
    past: Option<Past>,
    /// Responses and time at the last reading.
    last: (u64, Millis),
    /// Time since which the bound for the other state is met, and the responses at that time.
    beyond: Option<(Millis, u64)>,
    slow: Option<Slow>,
}

/// A worker's own past.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    cost: PrefillCost,
    /// Time in use over which the mean was taken, up to [`MEMORY`].
    age: Millis,
    /// Responses learned from when the mean began.
    from: u64,
}

impl Past {
    /// Returns whether observations can have led to these numbers, which another process wrote.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.cost.is_sound() && (0.0..=MEMORY.0).contains(&self.age.0)
    }
}

impl Slowness {
    /// Returns the worker's own past, to be restored by another process.
    #[must_use]
    pub fn own_past(&self) -> Option<Past> {
        self.past
    }

    /// Creates a detector that continues from the past of an earlier process, in which the worker had given
    /// `responses` by `now`.
    #[must_use]
    pub fn continued(past: Option<Past>, now: Millis, responses: u64) -> Self {
        Self {
            past,
            last: (responses, now),
            ..Self::default()
        }
    }

    /// Returns how slow the worker is; `None` if it is not.
    #[must_use]
    pub fn slow(&self) -> Option<Slow> {
        self.slow
    }

    fn past(&self, reading: &Reading) -> Option<PrefillCost> {
        let is_settled = |past: &Past| reading.responses.saturating_sub(past.from) >= SETTLED;
        let learned = self.past.filter(is_settled).map(|past| past.cost);
        reading.measured.or(learned)
    }

    /// Returns the time of a typical prefill as a multiple of that in the worker's own past.
    #[must_use]
    pub fn times_past(&self, reading: &Reading) -> Option<f64> {
        self.past(reading).map(|past| reading.times(&past, 0.0))
    }

    /// Records a reading. `common` is the median of [`Self::times_past`] over the fleet.
    pub fn observe(&mut self, reading: &Reading, common: f64) {
        let (bound, errors) = match self.slow {
            Some(_) => (RECOVERED, 0.0),
            None => (SLOW, ERRORS),
        };
        let baselines = self.baselines(reading, common);
        let exceeded = baselines
            .iter()
            .find(|baseline| baseline.times(reading, errors) >= bound);
        if exceeded.is_some() == self.slow.is_some() {
            self.beyond = None;
            if let (Some(slow), Some(exceeded)) = (&mut self.slow, exceeded) {
                *slow = exceeded.slow(reading, slow.since);
            }
        } else {
            let (since, from) = *self.beyond.get_or_insert((reading.now, reading.responses));
            if reading.now >= since + HOLD && reading.responses.saturating_sub(from) >= RESPONSES {
                self.beyond = None;
                self.slow = exceeded.map(|exceeded| exceeded.slow(reading, since));
            }
        }
        if self.slow.is_none() && self.beyond.is_none() {
            self.remember(reading);
        }
        self.last = (reading.responses, reading.now);
    }

    /// Returns the baselines, the worker's own past first: it is named where both are exceeded.
    fn baselines(&self, reading: &Reading, common: f64) -> Vec<Baseline> {
        let past = self.past(reading).map(|cost| Baseline {
            against: Against::OwnPast,
            cost,
            load: if common.is_nan() {
                1.0
            } else {
                common.clamp(1.0, LOAD)
            },
        });
        let others = reading.median.filter(|_| reading.measured.is_none());
        let fleet = others.map(|cost| Baseline {
            against: Against::Fleet,
            cost,
            load: 1.0,
        });
        past.into_iter().chain(fleet).collect()
    }

    /// Moves the mean towards the learned cost, by the time since the last reading if a response came in it.
    fn remember(&mut self, reading: &Reading) {
        let (responses, then) = self.last;
        let Some(past) = &mut self.past else {
            self.past = Some(Past {
                cost: reading.cost,
                age: Millis::ZERO,
                from: reading.responses,
            });
            return;
        };
        let passed = reading.now.saturating_sub(then);
        if reading.responses > responses && passed > Millis::ZERO {
            past.age = (past.age + passed).min(MEMORY);
            past.cost = past.cost.towards(&reading.cost, passed.0 / past.age.0);
        }
    }
}

/// A baseline, and the factor by which load lengthens all prefills.
#[derive(Clone, Copy)]
struct Baseline {
    against: Against,
    cost: PrefillCost,
    load: f64,
}

impl Baseline {
    fn times(&self, reading: &Reading, errors: f64) -> f64 {
        reading.times(&self.cost, errors) / self.load
    }

    fn slow(&self, reading: &Reading, since: Millis) -> Slow {
        Slow {
            factor: reading.times(&self.cost, 0.0).max(1.0),
            typical: Millis(reading.prefill(&reading.cost)),
            baseline_typical: Millis(reading.prefill(&self.cost)),
            cost: reading.cost,
            against: self.against,
            baseline: self.cost,
            since,
        }
    }
}

/// Returns the share of a worker's queue that slow workers elsewhere cause. `speed` is the mean speed of the workers,
/// where a slow one counts as 1 / factor. A queue grows with `ρ / (1 − ρ)`.
#[must_use]
pub fn slowed_share(utilisation: f64, speed: f64) -> f64 {
    let (now, then) = (utilisation.max(0.0), utilisation.max(0.0) * speed.clamp(0.0, 1.0));
    if then >= 1.0 {
        return 0.0;
    }
    // w(then) / w(now), of which the common factor is reduced.
    let remains = speed.clamp(0.0, 1.0) * (1.0 - now).max(0.0) / (1.0 - then);
    1.0 - remains
}

#[cfg(test)]
mod tests;
