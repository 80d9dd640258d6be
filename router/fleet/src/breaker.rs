//! A circuit breaker: a worker whose responses fail gets no turns for a while, then a single trial request.
//!
//! It judges by the outcome of requests, which shows more than probes: an engine whose model has died answers `/health`
//! for minutes. It opens when there are at least [`Settings::failures`] decayed failures and they are at least
//! [`Settings::share`] of all outcomes. After a pause it admits one trial request. If that fails, the breaker opens for
//! twice as long; if it succeeds, it closes, and the worker starts slowly ([`super::rotation`]). Rejected: a count of
//! consecutive failures, since one success in ten would keep a worker of which nine in ten fail; and a share alone,
//! since it would open on the first failure. The caller counts a request once, however many attempts it took: one that
//! fails on every worker is itself the likely cause.

use policy::units::Millis;

/// Time constant of the counts' decay, to 1/e.
const MEMORY_MS: f64 = 10_000.0;
/// A breaker that reopens within this multiple of its last pause pauses for twice as long.
const RELAPSE: f64 = 4.0;

/// Thresholds and pauses of a breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Decayed failures at which it may open; at least 1.
    pub failures: f64,
    /// Share of outcomes that must have failed, between 0 and 1.
    pub share: f64,
    /// First pause; positive.
    pub pause: Millis,
    /// Longest pause.
    pub longest_pause: Millis,
}

/// What a breaker admits at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests.
    Closed,
    /// No request: the pause is not over, or the trial is in flight.
    Open,
    /// One trial request.
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

/// How a request was admitted. The caller must report the outcome exactly once: [`Breaker::answered`],
/// [`Breaker::failed`] or [`Breaker::undecided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerPass {
    /// Through a closed breaker.
    Ordinary,
    /// As the trial of a half-open breaker.
    Trial,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    Open { until: Millis },
    HalfOpen { trying: bool },
}

/// One worker's breaker. It has no clock: `now` must not go backwards.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: Settings,
    state: State,
    good: f64,
    bad: f64,
    /// When the counts were last decayed.
    at: Millis,
    pause: Millis,
    closed_at: Millis,
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Closed,
            good: 0.0,
            bad: 0.0,
            at: Millis::ZERO,
            pause: Millis::ZERO,
            closed_at: Millis::ZERO,
        }
    }

    /// Returns what it would admit.
    pub fn standing(&self, now: Millis) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::HalfOpen { trying: true } => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { trying: false } => BreakerState::HalfOpen,
        }
    }

    /// Returns the failed share of outcomes. It does not decay, so that a worker without turns keeps its rank.
    pub fn failing(&self) -> f64 {
        self.bad / (self.good + self.bad).max(f64::MIN_POSITIVE)
    }

    /// Admits a request or not.
    pub fn admit(&mut self, now: Millis) -> Option<BreakerPass> {
        match self.standing(now) {
            BreakerState::Closed => Some(BreakerPass::Ordinary),
            BreakerState::Open => None,
            BreakerState::HalfOpen => {
                self.state = State::HalfOpen { trying: true };
                Some(BreakerPass::Trial)
            }
        }
    }

    /// Records a success. Returns whether it closed the breaker.
    pub fn answered(&mut self, now: Millis, pass: BreakerPass) -> bool {
        self.count(now, 1.0, 0.0);
        let closes = pass == BreakerPass::Trial && self.state == (State::HalfOpen { trying: true });
        if closes {
            self.state = State::Closed;
            self.closed_at = now;
            self.bad = 0.0;
        }
        closes
    }

    /// Records a failure. Returns whether it opened the breaker.
    pub fn failed(&mut self, now: Millis, pass: BreakerPass) -> bool {
        self.count(now, 0.0, 1.0);
        let opens = match (self.state, pass) {
            (State::HalfOpen { trying: true }, BreakerPass::Trial) => true,
            (State::Closed, _) => {
                // Allows for the decay between failures.
                self.bad + 0.5 > self.settings.failures
                    && self.bad >= self.settings.share * (self.good + self.bad)
            }
            _ => false,
        };
        if opens {
            self.open(now, self.state != State::Closed);
        }
        opens
    }

    /// Turns a recorded success into a failure, for a response that broke off. Returns whether that opened the breaker.
    pub fn broke_off(&mut self, now: Millis) -> bool {
        self.count(now, 0.0, 0.0);
        self.good = (self.good - 1.0).max(0.0);
        self.failed(now, BreakerPass::Ordinary)
    }

    /// Records an outcome that says nothing about the worker.
    pub fn undecided(&mut self, pass: BreakerPass) {
        if pass == BreakerPass::Trial && self.state == (State::HalfOpen { trying: true }) {
            self.state = State::HalfOpen { trying: false };
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
        self.state = State::Open {
            until: now + self.pause,
        };
    }

    fn count(&mut self, now: Millis, good: f64, bad: f64) {
        let fade = self.fade(now);
        self.good = self.good * fade + good;
        self.bad = self.bad * fade + bad;
        self.at = now;
    }

    fn fade(&self, now: Millis) -> f64 {
        (-(now - self.at).0.max(0.0) / MEMORY_MS).exp()
    }
}

#[cfg(test)]
mod tests;
