//! A connection's rare events: timers, drain phases, the client's disconnect, eviction.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Sleep;

use super::Phase;
use super::progress::Progress;
use super::socket::Socket;
use super::stalled::Answers;

/// How long a connection that has announced its end must be idle before it is closed.
const LAST_LOOK: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) socket: Arc<Socket>,
    pub(super) answers: Arc<Answers>,
    pub(super) progress: Arc<Progress>,
    pub(super) phase: watch::Receiver<Phase>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// For the rest of a head, from its first byte.
    pub(super) head: Duration,
    /// Between requests, and before the first one.
    pub(super) idle: Duration,
    /// For further requests on an HTTP/1 connection that is about to end without having announced it.
    pub(super) unused: Duration,
}

#[derive(Debug)]
pub(super) struct Events {
    watched: Watched,
    times: Times,
    seen: Phase,
    stage: Stage,
    look: Pin<Box<Sleep>>,
    client_closed: bool,
}

/// What the timer of [`Events::look`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Whether the connection is idle, or a head is late.
    Served,
    /// The router drains, and the connection has not announced its end.
    Leaving { was_sending: bool },
    /// The connection has announced its end.
    Told,
}

enum Woken {
    Phase,
    ClientClosed,
    Evicted,
    HeadBegins,
    Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The time for a request's head has passed.
    HeadIsDue,
    /// The connection has been idle for too long, and its protocol cannot announce the end.
    Idle,
    /// The connection should end, and can do so without losing a request.
    MayEnd,
    /// The connection has announced its end and has no open request.
    Ended,
    /// The connection is evicted for another one.
    Evicted,
    /// The client has closed its side during a request.
    ClientLeft,
    /// The client has pipelined more bytes than are buffered.
    PipelinesTooMuch,
    /// The router cuts its connections.
    Cut,
}

impl Events {
    pub(super) fn new(watched: Watched, times: Times) -> Self {
        Self {
            watched,
            times,
            seen: Phase::Serving,
            stage: Stage::Served,
            look: Box::pin(tokio::time::sleep(times.idle)),
            client_closed: false,
        }
    }

    /// Waits for the next event. Meanwhile it drops stalled responses.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            let event = match self.woken().await {
                Woken::Phase => self.enter_phase(),
                Woken::ClientClosed => {
                    self.client_closed = true;
                    self.watched.progress.client_closed();
                    let is_abandoned = self.watched.progress.is_abandoned();
                    is_abandoned.then_some(Event::ClientLeft)
                }
                Woken::Evicted => Some(Event::Evicted),
                Woken::HeadBegins if self.stage == Stage::Served => self.looked(),
                Woken::HeadBegins => None,
                Woken::Look => self.looked(),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    async fn woken(&mut self) -> Woken {
        let Watched {
            socket,
            answers,
            progress,
            phase,
        } = &mut self.watched;
        let seen = self.seen;
        tokio::select! {
            biased;
            now = phase.wait_for(|phase| *phase > seen) => {
                // Without a sender the server is gone, which cuts its connections.
                self.seen = now.map_or(Phase::Cut, |now| *now);
                Woken::Phase
            }
            () = socket.closed_by_client(), if !self.client_closed => Woken::ClientClosed,
            () = progress.evicted() => Woken::Evicted,
            () = progress.head_begins() => Woken::HeadBegins,
            () = self.look.as_mut() => Woken::Look,
            never = answers.watch() => match never {},
        }
    }

    fn enter_phase(&mut self) -> Option<Event> {
        if self.seen == Phase::Cut {
            return Some(Event::Cut);
        }
        // GOAWAY in HTTP/2 loses no requests.
        if self.watched.progress.is_http2() {
            return Some(self.may_end());
        }
        self.watched.progress.was_used();
        let was_sending = self.watched.answers.are_any();
        self.look_after(self.times.unused, Stage::Leaving { was_sending });
        None
    }

    fn looked(&mut self) -> Option<Event> {
        match self.stage {
            Stage::Served => return self.look_at_idleness(),
            Stage::Leaving { was_sending } => {
                let is_sending = self.watched.answers.are_any();
                if !self.watched.progress.was_used() && !is_sending && !was_sending {
                    return Some(self.may_end());
                }
                let was_sending = is_sending;
                self.look_after(self.times.unused, Stage::Leaving { was_sending });
            }
            Stage::Told => {
                let idle_for = self.watched.progress.idle_for();
                if idle_for.is_some_and(|idle| idle >= LAST_LOOK) {
                    return Some(Event::Ended);
                }
                self.look_after(LAST_LOOK, Stage::Told);
            }
        }
        None
    }

    /// Ends a connection whose head is late, or that is idle. Schedules the next check otherwise.
    fn look_at_idleness(&mut self) -> Option<Event> {
        let (progress, Times { head, idle, .. }) = (&self.watched.progress, self.times);
        let head_open_for = progress.head_open_for().unwrap_or_default();
        let idle_for = progress.idle_for().unwrap_or_default();
        if head_open_for >= head {
            return Some(Event::HeadIsDue);
        }
        let after = if progress.has_open_head() {
            head - head_open_for
        } else if idle_for < idle {
            idle - idle_for
        } else if progress.is_http2() {
            // GOAWAY loses no request.
            return Some(self.may_end());
        } else {
            return Some(Event::Idle);
        };
        self.look_after(after, Stage::Served);
        None
    }

    fn may_end(&mut self) -> Event {
        self.look_after(LAST_LOOK, Stage::Told);
        Event::MayEnd
    }

    fn look_after(&mut self, time: Duration, stage: Stage) {
        self.stage = stage;
        self.look = Box::pin(tokio::time::sleep(time));
    }
}
