//! A circuit breaker: a worker whose responses fail gets no turns for a while, then a single trial request.
//!
//! The breaker judges by the outcome of requests, which shows more than probes: an engine whose model has died answers
//! `/health` for minutes. It opens when there are at least [`Settings::failures`] decayed failures and they are at
//! least [`Settings::share`] of all outcomes, or at the same number of failures without a success between them, so that
//! an engine that dies is not trusted for its past. After a pause it admits one trial request. If that fails, the
//! breaker opens for twice as long, unless the others fail as well; if it succeeds, it closes, and the worker starts
//! slowly ([`super::rotation`]). Rejected: a count of consecutive failures alone, since one success in ten would keep a
//! worker of which nine in ten fail; and a share alone, since it would open on the first failure.
//!
//! Failures may be the requests' fault, so they are weighed. The caller counts a request once, however many attempts it
//! took. A request that fails again counts no more, and is sent elsewhere first ([`Breaker::has_failed`]). And where
//! other workers answer some of their requests, a worker must fail significantly more than they do: a client whose
//! every request fails is no worker's fault.

use policy::units::Millis;

use self::sources::FailedRequests;

mod sources;

/// Time constant of the counts' decay, to 1/e.
const MEMORY_MS: f64 = 10_000.0;
/// A breaker that reopens within this multiple of its last pause pauses for twice as long.
const RELAPSE: f64 = 4.0;
/// Standard deviations by which a worker's failed share must exceed that of the others.
const SIGNIFICANT: f64 = 3.0;
/// Probability, by the failed share of the others, below which a run of failures is not taken for chance.
const CHANCE: f64 = 1e-5;

/// Thresholds and pauses of a breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Decayed failures at which the breaker may open; at least 1.
    pub failures: f64,
    /// Share of outcomes that must have failed, between 0 and 1.
    pub share: f64,
    /// First pause; positive.
    pub pause: Millis,
    /// Longest pause.
    pub longest_pause: Millis,
}

/// The requests that a breaker admits at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests are admitted.
    Closed,
    /// No request is admitted: the pause is not over, or the trial is in flight.
    Open,
    /// One trial request is admitted.
    HalfOpen,
}

impl BreakerState {
    /// Returns the name in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// A request's admission by a breaker. The caller must report the outcome exactly once: [`Breaker::answered`],
/// [`Breaker::failed`] or [`Breaker::undecided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerPass {
    /// The breaker was closed.
    Ordinary,
    /// The request is the trial of a half-open breaker.
    Trial,
}

/// Decayed counts of successes and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcomes {
    pub good: f64,
    pub bad: f64,
}

impl Outcomes {
    fn failed_share(self) -> f64 {
        self.bad / (self.good + self.bad).max(f64::MIN_POSITIVE)
    }

    /// Returns the share expected to fail. It assumes one success more, so that few failures show little.
    fn expected(self) -> f64 {
        self.bad / (self.good + self.bad + 1.0)
    }

    /// Returns whether any request was answered recently.
    fn has_answered(self) -> bool {
        self.good >= 0.1
    }

    /// Returns whether the failed share is significantly larger than that of the other workers. If those answer
    /// nothing, there is nothing to compare with.
    fn stands_out(self, others: Self) -> bool {
        if !others.has_answered() {
            return true;
        }
        let expected = others.expected();
        let excess = self.failed_share() - expected;
        let variance = expected * (1.0 - expected) / (self.good + self.bad).max(1.0);
        excess > 0.0 && excess * excess >= SIGNIFICANT * SIGNIFICANT * variance
    }
}

impl std::ops::AddAssign for Outcomes {
    fn add_assign(&mut self, other: Self) {
        self.good += other.good;
        self.bad += other.bad;
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CircuitState {
    Closed,
    Open { until: Millis },
    HalfOpen { trying: bool },
}

/// One worker's breaker. It has no clock: `now` must not go backwards.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: Settings,
    state: CircuitState,
    counts: Outcomes,
    /// Failures since the last success.
    run: u32,
    sources: FailedRequests,
    /// Time at which the counts were last decayed.
    at: Millis,
    pause: Millis,
    closed_at: Millis,
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: CircuitState::Closed,
            counts: Outcomes::default(),
            run: 0,
            sources: FailedRequests::default(),
            at: Millis::ZERO,
            pause: Millis::ZERO,
            closed_at: Millis::ZERO,
        }
    }

    /// Returns which requests the breaker would admit.
    pub fn state(&self, now: Millis) -> BreakerState {
        match self.state {
            CircuitState::Closed => BreakerState::Closed,
            CircuitState::Open { until } if now < until => BreakerState::Open,
            CircuitState::HalfOpen { trying: true } => BreakerState::Open,
            CircuitState::Open { .. } | CircuitState::HalfOpen { trying: false } => BreakerState::HalfOpen,
        }
    }

    /// Returns the failed share of outcomes. It does not decay, so that a worker without turns keeps its rank.
    pub fn failed_share(&self) -> f64 {
        self.counts.failed_share()
    }

    /// Returns the recent outcomes, to compare another worker with; none if the breaker is not closed.
    pub fn outcomes(&self, now: Millis) -> Outcomes {
        if self.state != CircuitState::Closed {
            return Outcomes::default();
        }
        let fade = self.fade(now);
        Outcomes {
            good: self.counts.good * fade,
            bad: self.counts.bad * fade,
        }
    }

    /// Returns whether a request has failed on this worker recently.
    pub fn has_failed(&self, now: Millis, source: u64) -> bool {
        self.sources.has(now, source)
    }

    /// Returns whether any identified request has failed on this worker recently.
    pub fn has_failures(&self, now: Millis) -> bool {
        self.sources.any(now)
    }

    /// Admits a request, unless the breaker is open.
    pub fn admit(&mut self, now: Millis) -> Option<BreakerPass> {
        match self.state(now) {
            BreakerState::Closed => Some(BreakerPass::Ordinary),
            BreakerState::Open => None,
            BreakerState::HalfOpen => {
                self.state = CircuitState::HalfOpen { trying: true };
                Some(BreakerPass::Trial)
            }
        }
    }

    /// Records a success. Returns whether it closed the breaker.
    pub fn answered(&mut self, now: Millis, pass: BreakerPass) -> bool {
        self.count(now, 1.0, 0.0);
        self.run = 0;
        let closes = pass == BreakerPass::Trial && self.state == (CircuitState::HalfOpen { trying: true });
        if closes {
            self.state = CircuitState::Closed;
            self.closed_at = now;
            self.counts.bad = 0.0;
            self.sources = FailedRequests::default();
        }
        closes
    }

    /// Records a failure. `source` identifies the request's prompt and client, if they are known. Returns whether the
    /// breaker may open: [`open_unless_alike`](Self::open_unless_alike) decides.
    pub fn failed(&mut self, now: Millis, pass: BreakerPass, source: Option<u64>) -> bool {
        let is_new = source.is_none_or(|source| self.sources.add(now, source));
        self.run = self.run.saturating_add(u32::from(is_new));
        if self.state == (CircuitState::HalfOpen { trying: true }) && pass == BreakerPass::Trial {
            self.count(now, 0.0, 1.0);
            self.state = CircuitState::HalfOpen { trying: false };
            return true;
        }
        self.count(now, 0.0, f64::from(u8::from(is_new)));
        is_new && (self.is_suspect() || self.is_run_suspect())
    }

    /// Opens the breaker, if its failures are enough and significantly more than those of the other workers. A failed
    /// trial opens it again, unless the others' failed share reaches [`Settings::share`]. Returns whether it has opened.
    pub fn open_unless_alike(&mut self, now: Millis, others: Outcomes) -> bool {
        let is_trial = matches!(self.state, CircuitState::HalfOpen { .. });
        let opens = if is_trial {
            !others.has_answered() || others.failed_share() < self.settings.share
        } else {
            self.is_suspect() && self.counts.stands_out(others)
                || self.is_run_suspect() && self.is_no_chance(others)
        };
        if opens {
            self.open(now, is_trial);
        }
        opens
    }

    /// Turns a recorded success into a failure, for a response that broke off. Returns whether the breaker may open.
    pub fn broke_off(&mut self, now: Millis, source: Option<u64>) -> bool {
        self.count(now, -1.0, 0.0);
        self.counts.good = self.counts.good.max(0.0);
        self.failed(now, BreakerPass::Ordinary, source)
    }

    fn may_open(&self) -> bool {
        // Allows for the decay between failures.
        self.state == CircuitState::Closed && self.counts.bad + 0.5 > self.settings.failures
    }

    fn is_suspect(&self) -> bool {
        let Outcomes { good, bad } = self.counts;
        self.may_open() && bad >= self.settings.share * (good + bad)
    }

    fn is_run_suspect(&self) -> bool {
        self.may_open() && f64::from(self.run) >= self.settings.failures
    }

    /// Returns whether a run of recent failures is unlikely for a worker that fails like the others.
    fn is_no_chance(&self, others: Outcomes) -> bool {
        let run = f64::from(self.run).min(self.counts.bad + 0.5);
        !others.has_answered() || others.expected().powf(run) <= CHANCE
    }

    /// Records an outcome that says nothing about the worker.
    pub fn undecided(&mut self, pass: BreakerPass) {
        if pass == BreakerPass::Trial && self.state == (CircuitState::HalfOpen { trying: true }) {
            self.state = CircuitState::HalfOpen { trying: false };
        }
    }

    /// Resets the breaker for a new or restarted worker process.
    pub fn reset(&mut self, now: Millis) {
        let settings = self.settings;
        *self = Self::new(settings);
        self.at = now;
    }

    fn open(&mut self, now: Millis, relapsed: bool) {
        let Settings {
            pause, longest_pause, ..
        } = self.settings;
        let soon = (now - self.closed_at).0 < RELAPSE * self.pause.0;
        self.pause = if relapsed || soon {
            Millis((2.0 * self.pause.0).clamp(pause.0, longest_pause.0.max(pause.0)))
        } else {
            pause
        };
        self.state = CircuitState::Open {
            until: now + self.pause,
        };
    }

    fn count(&mut self, now: Millis, good: f64, bad: f64) {
        let fade = self.fade(now);
        self.counts.good = self.counts.good * fade + good;
        self.counts.bad = self.counts.bad * fade + bad;
        self.at = now;
    }

    fn fade(&self, now: Millis) -> f64 {
        (-(now - self.at).0.max(0.0) / MEMORY_MS).exp()
    }
}

#[cfg(test)]
mod tests;
