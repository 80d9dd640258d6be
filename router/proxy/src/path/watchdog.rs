//! Ends a response that its worker does not begin or continue in time, whose deadline passes, or that outlasts the
//! drain limit.
//!
//! The limit depends on what is waited for, not on when an engine flushes its head:
//!
//! | until | limit | counted from |
//! |---|---|---|
//! | the first token | `limits.first_byte_timeout_s` | the request's way to the worker |
//! | the next bytes after that | `limits.idle_timeout_s` | the last bytes |
//! | the end | `failure.total_timeout_s`, or the client's own deadline | the request's head |
//!
//! An event without tokens (the role, `response.created`) does not end the wait for the first token, but a stream that
//! continues with such events is not cut. Comments, pings and blanks count for nothing.
//!
//! Pieces pass often, so they do not reset the timer: each records its time, and the timer checks this when it fires.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::deadline::Deadline;
use super::flight::AttemptOutcome;
use crate::Proxy;
use protocol::error::ApiError;
use protocol::watch::Step;
use tailroute_http::body::BodyError;
use tailroute_http::rare_waker::RareWaker;

pub struct Watchdog {
    timer: Pin<Box<Sleep>>,
    waits: WatchdogState,
    /// Woken by the timer and the cut. Otherwise neither needs a poll.
    waker: RareWaker,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The limits of one response, and its progress.
#[derive(Clone, Copy, Debug)]
struct WatchdogState {
    first: Duration,
    idle: Duration,
    deadline: Deadline,
    /// Time at which the request was sent to the worker.
    sent: Instant,
    has_begun: bool,
    /// Time of the last event; of the last bytes after the first token.
    last: Instant,
}

/// Log message of a response that is cut off.
pub const CUT_OFF: &str = "the response was cut off";

/// The reason to end a response early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The worker sent no first token in time.
    NotBegun(Duration),
    /// The worker was silent for too long after its first token, or after events that delayed the first token beyond
    /// its limit.
    Silent(Duration),
    /// The request's deadline passed.
    Late,
    /// The drain limit was reached.
    Cut,
}

impl Overrun {
    /// Returns the cause as logs state it.
    pub fn cause(self) -> BodyError {
        match self {
            Self::NotBegun(_) => "the worker sent no first token within limits.first_byte_timeout_s",
            Self::Silent(_) => "the worker was silent for limits.idle_timeout_s",
            Self::Late => "the request's deadline has passed",
            Self::Cut => "the drain limit was reached",
        }
        .into()
    }

    /// Returns the outcome of a response that ends this way.
    pub fn outcome(self) -> AttemptOutcome {
        match self {
            Self::NotBegun(_) | Self::Silent(_) => AttemptOutcome::Broken,
            Self::Late => AttemptOutcome::Deadline,
            Self::Cut => AttemptOutcome::Cut,
        }
    }

    /// Returns whether the overrun counts as a failure of the worker. `is_busy`: the worker makes progress on other
    /// requests.
    pub fn is_the_workers(self, is_busy: bool) -> bool {
        match self {
            Self::NotBegun(_) => !is_busy,
            Self::Silent(_) => true,
            Self::Late | Self::Cut => false,
        }
    }
}

impl WatchdogState {
    fn saw(&mut self, step: Step, now: Instant) {
        self.has_begun |= step == Step::Token;
        if self.has_begun || step != Step::Nothing {
            self.last = now;
        }
    }

    /// Returns when to check next. A token that passes in between may bring the end forward, but not to before this
    /// time.
    fn check_at(&self, now: Instant) -> Instant {
        self.due().0.min(now + self.idle)
    }

    /// Returns when the response must end unless it makes progress, and why.
    fn due(&self) -> (Instant, Overrun) {
        let silent = self.last + self.idle;
        let first = self.sent + self.first;
        let (at, overrun) = match self.has_begun {
            true => (silent, Overrun::Silent(self.idle)),
            // Until an event passes, `last` is when the request was sent.
            false if self.last > self.sent && silent > first => (silent, Overrun::Silent(self.idle)),
            false => (first, Overrun::NotBegun(self.first)),
        };
        match self.deadline.whole() {
            Some(whole) if whole <= at => (whole, Overrun::Late),
            _ => (at, overrun),
        }
    }
}

impl Watchdog {
    /// Begins to watch the response to a request that was sent to a worker at this time.
    pub fn new(proxy: &Proxy, deadline: Deadline, sent: Instant) -> Self {
        let live = proxy.state.routing.live();
        let waits = WatchdogState {
            first: live.limits.first_byte_timeout,
            idle: live.limits.idle_timeout,
            deadline,
            sent,
            has_begun: false,
            last: sent,
        };
        Self {
            timer: Box::pin(tokio::time::sleep_until(waits.check_at(sent))),
            waits,
            waker: RareWaker::default(),
            cut: Box::pin(proxy.when_cut_off()),
        }
    }

    /// Records how far the bytes that passed advance the response.
    pub fn saw(&mut self, step: Step) {
        self.waits.saw(step, Instant::now());
    }

    /// Returns the overrun once the response must end. Polled whenever no data is available.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Overrun> {
        if !self.waker.was_woken(cx) {
            return Poll::Pending;
        }
        let waker = self.waker.waker().clone();
        let cx = &mut Context::from_waker(&waker);
        while self.timer.as_mut().poll(cx).is_ready() {
            let (now, (at, overrun)) = (Instant::now(), self.waits.due());
            if at <= now {
                return Poll::Ready(overrun);
            }
            self.timer.as_mut().reset(self.waits.check_at(now));
        }
        self.cut.as_mut().poll(cx).map(|()| Overrun::Cut)
    }

    /// Returns the error that the client gets.
    pub fn told(&self, overrun: Overrun) -> ApiError {
        match overrun {
            Overrun::NotBegun(limit) | Overrun::Silent(limit) => ApiError::WorkerTimeout(limit),
            Overrun::Late => self.waits.deadline.exceeded(),
            Overrun::Cut => ApiError::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    const FIRST: u64 = 600;
    const IDLE: u64 = 120;

    /// Returns after how many seconds a response with these steps must end, and why. `total`: the deadline in seconds.
    fn ends(steps: &[(u64, Step)], total: Option<u64>) -> (u64, Overrun) {
        let sent = Instant::now();
        let mut headers = HeaderMap::new();
        if let Some(total) = total {
            headers.insert("x-request-timeout-ms", (total * 1000).into());
        }
        let mut waits = WatchdogState {
            first: Duration::from_secs(FIRST),
            idle: Duration::from_secs(IDLE),
            deadline: Deadline::of(&headers, &config::Failure::default(), sent),
            sent,
            has_begun: false,
            last: sent,
        };
        for (at, step) in steps {
            waits.saw(*step, sent + Duration::from_secs(*at));
        }
        let (at, overrun) = waits.due();
        ((at - sent).as_secs(), overrun)
    }

    #[test]
    fn the_limit_depends_on_what_is_waited_for() {
        use Step::{Event, Nothing, Token};
        let not_begun = Overrun::NotBegun(Duration::from_secs(FIRST));
        let silent = Overrun::Silent(Duration::from_secs(IDLE));
        for (what, steps, total, expected) in [
            ("no event", &[][..], None, (600, not_begun)),
            (
                "comments only",
                &[(5, Nothing), (590, Nothing)],
                None,
                (600, not_begun),
            ),
            (
                "the role, then nothing",
                &[(1, Event), (2, Nothing)],
                None,
                (600, not_begun),
            ),
            (
                "events without a token",
                &[(1, Event), (590, Event)],
                None,
                (710, silent),
            ),
            ("one token", &[(500, Token)], None, (620, silent)),
            (
                "comments after a token",
                &[(1, Token), (60, Nothing)],
                None,
                (180, silent),
            ),
            (
                "a deadline before the first token",
                &[],
                Some(30),
                (30, Overrun::Late),
            ),
            (
                "a deadline between tokens",
                &[(1, Token)],
                Some(30),
                (30, Overrun::Late),
            ),
            ("a deadline beyond", &[(1, Token)], Some(1000), (121, silent)),
        ] {
            assert_eq!(ends(steps, total), expected, "{what}");
        }
    }

    #[test]
    fn a_late_first_token_counts_against_a_worker_that_makes_no_progress() {
        let limit = Duration::from_secs(1);
        for (overrun, busy, stuck) in [
            (Overrun::NotBegun(limit), false, true),
            (Overrun::Silent(limit), true, true),
            (Overrun::Late, false, false),
            (Overrun::Cut, false, false),
        ] {
            assert_eq!(
                [true, false].map(|is_busy| overrun.is_the_workers(is_busy)),
                [busy, stuck],
                "{overrun:?}"
            );
        }
    }
}
