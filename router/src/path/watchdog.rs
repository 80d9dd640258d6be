//! Until when an answer may go on: while it is not silent for too long, its deadline has not passed and the router stays.
//!
//! The timer is not set anew for each piece that passes, of which there are many: a piece leaves the time, and the timer,
//! when it fires, looks whether it came too early.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::forward::Deadline;
use crate::app::App;
use protocol::error::ApiError;
use tailroute_http::body::BodyError;
use tailroute_http::rare_waker::RareWaker;

/// Watches over one answer.
pub struct Watchdog {
    timer: Pin<Box<Sleep>>,
    idle: Duration,
    last: Instant,
    deadline: Deadline,
    /// Rung by the timer and by the cut: nothing else asks for either to be polled.
    bell: RareWaker,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why an answer may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The worker has said nothing for too long.
    Silent(Duration),
    /// The request's own time is up.
    Late,
    /// The router has to go.
    Cut,
}

impl Overrun {
    /// What the log says.
    #[must_use]
    pub fn cause(self) -> BodyError {
        match self {
            Self::Silent(_) => "the worker stopped sending",
            Self::Late => "the request's deadline has passed",
            Self::Cut => "the drain limit was reached",
        }
        .into()
    }

    /// Whether it is held against the worker.
    #[must_use]
    pub fn is_the_workers(self) -> bool {
        matches!(self, Self::Silent(_))
    }
}

impl Watchdog {
    /// Begins to watch.
    #[must_use]
    pub fn new(app: &App, deadline: Deadline) -> Self {
        let idle = app.live().limits.idle_timeout;
        let last = Instant::now();
        let mut watchdog = Self {
            timer: Box::pin(tokio::time::sleep_until(last)),
            idle,
            last,
            deadline,
            bell: RareWaker::default(),
            cut: Box::pin(app.when_cut_off()),
        };
        watchdog.arm();
        watchdog
    }

    /// A piece passed.
    pub fn saw(&mut self) {
        self.last = Instant::now();
    }

    /// Ready when the answer may not go on. Asked whenever nothing came.
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

    /// What a client is told.
    #[must_use]
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
