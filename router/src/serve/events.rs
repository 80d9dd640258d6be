//! What may happen to a connection besides what its two sides do: timers, the drain, a client that leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Sleep;

use super::Phase;
use super::progress::Progress;
use super::socket::Socket;
use super::stalled::Answers;

/// For a connection that was told to end to have no request open, until it is closed.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What a connection's events are made of.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) socket: Arc<Socket>,
    pub(super) answers: Arc<Answers>,
    pub(super) progress: Arc<Progress>,
    pub(super) phase: watch::Receiver<Phase>,
}

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// For the head of a request.
    pub(super) head: Duration,
    /// Without an open request, over HTTP/2. hyper itself keeps time between requests of HTTP/1.
    pub(super) idle: Duration,
    /// For a client to use a connection of HTTP/1 that is about to end, and has not said so yet.
    pub(super) unused: Duration,
}

/// The events of one connection.
#[derive(Debug)]
pub(super) struct Events {
    watched: Watched,
    times: Times,
    seen: Phase,
    stage: Stage,
    look: Pin<Box<Sleep>>,
    client_closed: bool,
}

/// What is looked at when [`Events::look`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Whether a first request has come. hyper's own timer starts once it knows which version it reads.
    First,
    /// HTTP/1: nothing.
    Served,
    /// HTTP/2: whether it is idle, or has been in the same header block since the last look.
    Http2 { block: Option<u64> },
    /// The router drains, and the connection does not know yet that it ends.
    Leaving { was_sending: bool },
    /// The connection was told that it ends.
    Told,
}

/// Why the events were looked at.
enum Woken {
    Phase,
    ClientClosed,
    GivesWay,
    Look,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The time for a request's head is over.
    HeadIsDue,
    /// The connection can end without losing a request, and should.
    MayEnd,
    /// It was told to end, and nothing is open on it.
    Ended,
    /// It has to make room for another.
    GivesWay,
    /// Its client has closed its side while a request was open.
    ClientLeft,
    /// Its client has pipelined more than is kept.
    PipelinesTooMuch,
    /// The router has to go.
    Cut,
}

impl Events {
    pub(super) fn new(watched: Watched, times: Times) -> Self {
        Self {
            watched,
            times,
            seen: Phase::Serving,
            stage: Stage::First,
            look: Box::pin(tokio::time::sleep(times.head)),
            client_closed: false,
        }
    }

    /// The next one. Answers that are stuck are given up meanwhile.
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
                Woken::GivesWay => Some(Event::GivesWay),
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
                // A server that is gone without a word takes its connections along.
                self.seen = now.map_or(Phase::Cut, |now| *now);
                Woken::Phase
            }
            () = socket.closed_by_client(), if !self.client_closed => Woken::ClientClosed,
            () = progress.has_to_give_way() => Woken::GivesWay,
            () = self.look.as_mut(), if self.stage != Stage::Served => Woken::Look,
            never = answers.watch() => match never {},
        }
    }

    /// The router drains, or goes.
    fn enter_phase(&mut self) -> Option<Event> {
        if self.seen == Phase::Cut {
            return Some(Event::Cut);
        }
        // HTTP/2 has a word for it that loses nothing.
        if self.watched.progress.is_http2() {
            return Some(self.may_end());
        }
        self.watched.progress.was_used();
        let was_sending = self.watched.answers.are_any();
        self.look_after(self.times.unused, Stage::Leaving { was_sending });
        None
    }

    /// It is time to look.
    fn looked(&mut self) -> Option<Event> {
        let progress = &self.watched.progress;
        let idle_for = progress.idle_for();
        match self.stage {
            Stage::Served => {}
            Stage::First if !progress.any_request() => return Some(Event::HeadIsDue),
            Stage::First if progress.is_http2() => self.look_at_http2(idle_for),
            Stage::First => self.stage = Stage::Served,
            Stage::Http2 { block } if block.is_some() && block == progress.open_header_block() => {
                return Some(Event::HeadIsDue);
            }
            Stage::Http2 { .. } if idle_for.is_some_and(|idle| idle >= self.times.idle) => {
                return Some(self.may_end());
            }
            Stage::Http2 { .. } => self.look_at_http2(idle_for),
            Stage::Leaving { was_sending } => {
                let is_sending = self.watched.answers.are_any();
                if !self.watched.progress.was_used() && !is_sending && !was_sending {
                    return Some(self.may_end());
                }
                let was_sending = is_sending;
                self.look_after(self.times.unused, Stage::Leaving { was_sending });
            }
            Stage::Told if idle_for.is_some_and(|idle| idle >= LAST_LOOK) => return Some(Event::Ended),
            Stage::Told => self.look_after(LAST_LOOK, Stage::Told),
        }
        None
    }

    /// A header block may last as long as any head. An idle connection is looked at when its time is over.
    fn look_at_http2(&mut self, idle_for: Option<Duration>) {
        let block = self.watched.progress.open_header_block();
        let idle_for = idle_for.unwrap_or_default();
        let after = self.times.head.min(self.times.idle.saturating_sub(idle_for));
        self.look_after(after, Stage::Http2 { block });
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
