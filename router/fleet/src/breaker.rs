//! A circuit breaker: a worker whose answers fail is left alone for a while, then tried with a single request.
//!
//! Probes ask whether a worker is there; a breaker goes by what became of the requests that it was given, which is more
//! than a probe can know (an engine whose model has died answers `/health` for minutes). It works on two decayed
//! counts, of answers that came and of failures: it opens when there were at least [`Settings::failures`] failures of
//! late and they are at least [`Settings::share`] of what came back. A count in a row was rejected: one good answer in
//! ten would keep a worker of which nine in ten fail. A share alone was too: it would open on the first failure.
//!
//! ```text
//!   closed ──failures──▶ open ──time is up──▶ half-open ──the one request fails──▶ open, for twice as long
//!     ▲                                           │
//!     └───────────────its answer comes────────────┘   (and the worker starts slowly, see `rotation`)
//! ```
//!
//! What counts is decided by the caller, once for a request however many attempts it took: a request that fails wherever
//! it goes says more of itself than of the workers, and must not open the breakers of all of them one by one. How many
//! breakers may keep work away at a time is [`super::rotation`]'s business.

use policy::units::Millis;

/// Time in which a count fades to 1/e.
const MEMORY_MS: f64 = 10_000.0;
/// A breaker that opens again within so many times the last pause stays open for twice as long.
const RELAPSE: f64 = 4.0;

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Failures of late from which on it may open; at least 1.
    pub failures: f64,
    /// Share of what came back that has to have failed, between 0 and 1.
    pub share: f64,
    /// How long it stays open the first time; positive.
    pub pause: Millis,
    /// How long at most.
    pub longest_pause: Millis,
}

/// What a breaker lets through at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Everything.
    Closed,
    /// Nothing: its time is not up, or the one request that tries it is on its way.
    Open,
    /// One request.
    HalfOpen,
}

impl Standing {
    /// The name in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// As what a request was let through. Whoever was let through must say what came of it, once: [`Breaker::answered`],
/// [`Breaker::failed`] or [`Breaker::undecided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// One of many.
    Ordinary,
    /// The one that tries whether the worker is well again.
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
    /// When the counts were last faded.
    at: Millis,
    /// The last pause, and when it was over.
    pause: Millis,
    closed_at: Millis,
}

impl Breaker {
    /// A closed one.
    #[must_use]
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

    /// What it would let through.
    #[must_use]
    pub fn standing(&self, now: Millis) -> Standing {
        match self.state {
            State::Closed => Standing::Closed,
            State::Open { until } if now < until => Standing::Open,
            State::HalfOpen { trying: true } => Standing::Open,
            State::Open { .. } | State::HalfOpen { trying: false } => Standing::HalfOpen,
        }
    }

    /// Share of what came back that has failed. It does not fade: of two workers that are left alone the one that failed
    /// more often stays the worse one.
    #[must_use]
    pub fn failing(&self) -> f64 {
        self.bad / (self.good + self.bad).max(f64::MIN_POSITIVE)
    }

    /// Lets a request through, or not.
    pub fn admit(&mut self, now: Millis) -> Option<Pass> {
        match self.standing(now) {
            Standing::Closed => Some(Pass::Ordinary),
            Standing::Open => None,
            Standing::HalfOpen => {
                self.state = State::HalfOpen { trying: true };
                Some(Pass::Trial)
            }
        }
    }

    /// Its answer came. Returns whether that closed the breaker.
    pub fn answered(&mut self, now: Millis, pass: Pass) -> bool {
        self.count(now, 1.0, 0.0);
        let closes = pass == Pass::Trial && self.state == (State::HalfOpen { trying: true });
        if closes {
            self.state = State::Closed;
            self.closed_at = now;
            self.bad = 0.0;
        }
        closes
    }

    /// It failed. Returns whether that opened the breaker.
    pub fn failed(&mut self, now: Millis, pass: Pass) -> bool {
        self.count(now, 0.0, 1.0);
        let opens = match (self.state, pass) {
            (State::HalfOpen { trying: true }, Pass::Trial) => true,
            (State::Closed, _) => {
                // Counts that have faded by a hair still count.
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

    /// The answer that had come well broke off: it was none. Returns whether that opened the breaker.
    pub fn broke_off(&mut self, now: Millis) -> bool {
        self.count(now, 0.0, 0.0);
        self.good = (self.good - 1.0).max(0.0);
        self.failed(now, Pass::Ordinary)
    }

    /// Nothing was learned of the worker.
    pub fn undecided(&mut self, pass: Pass) {
        if pass == Pass::Trial && self.state == (State::HalfOpen { trying: true }) {
            self.state = State::HalfOpen { trying: false };
        }
    }

    /// It is another process now, or one that starts anew.
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
