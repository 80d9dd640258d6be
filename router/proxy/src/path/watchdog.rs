//! Ends a response that is idle for too long, whose deadline passes, or that outlasts the drain limit.
//!
//! Pieces pass often, so they do not reset the timer: each records its time, and the timer checks this when it fires.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::deadline::Deadline;
use crate::Proxy;
use protocol::error::ApiError;
use tailroute_http::body::BodyError;
use tailroute_http::rare_waker::RareWaker;

/// The watchdog of one response.
pub struct Watchdog {
    timer: Pin<Box<Sleep>>,
    idle: Duration,
    last: Instant,
    deadline: Deadline,
    /// Woken by the timer and the cut. Otherwise neither needs a poll.
    bell: RareWaker,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why a response must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The worker was silent for too long.
    Silent(Duration),
    /// The request's deadline passed.
    Late,
    /// The drain limit was reached.
    Cut,
}

impl Overrun {
    /// The cause in logs.
    pub fn cause(self) -> BodyError {
        match self {
            Self::Silent(_) => "the worker stopped sending",
            Self::Late => "the request's deadline has passed",
            Self::Cut => "the drain limit was reached",
        }
        .into()
    }

    /// Whether the overrun counts as a failure of the worker.
    pub fn is_the_workers(self) -> bool {
        matches!(self, Self::Silent(_))
    }
}

impl Watchdog {
    /// Begins to watch.
    pub fn new(proxy: &Proxy, deadline: Deadline) -> Self {
        let idle = proxy.state.live().limits.idle_timeout;
        let last = Instant::now();
        let mut watchdog = Self {
            timer: Box::pin(tokio::time::sleep_until(last)),
            idle,
            last,
            deadline,
            bell: RareWaker::default(),
            cut: Box::pin(proxy.when_cut_off()),
        };
        watchdog.arm();
        watchdog
    }

    /// Records that a piece passed.
    pub fn saw(&mut self) {
        self.last = Instant::now();
    }

    /// Ready when the response must end. Polled whenever no data is available.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Overrun> {
        if !self.bell.has_rung(cx) {
            return Poll::Pending;
        }
        let waker = self.bell.waker().clone();
        let cx = &mut Context::from_waker(&waker);
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.deadline.whole().is_some_and(|at| at <= now) {
                return Poll::Ready(Overrun::Late);
            }
            if now - self.last >= self.idle {
                return Poll::Ready(Overrun::Silent(self.idle));
            }
            self.arm();
        }
        self.cut.as_mut().poll(cx).map(|()| Overrun::Cut)
    }

    /// The error sent to the client.
    pub fn told(&self, overrun: Overrun) -> ApiError {
        match overrun {
            Overrun::Silent(idle) => ApiError::WorkerTimeout(idle),
            Overrun::Late => self.deadline.exceeded(),
            Overrun::Cut => ApiError::Draining,
        }
    }

    fn arm(&mut self) {
        let silent = self.last + self.idle;
        let at = self.deadline.whole().map_or(silent, |whole| whole.min(silent));
        self.timer.as_mut().reset(at);
    }
}
