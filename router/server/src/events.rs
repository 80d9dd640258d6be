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

/// Idle time after which a connection that has announced its end is closed.
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
    /// Time limit for a head, from its first byte.
    pub(super) head: Duration,
    /// Longest time between requests, and before the first one.
    pub(super) idle: Duration,
    /// Time without a request after which an HTTP/1 connection that is about to end, without having announced it, is
    /// closed.
    pub(super) unused: Duration,
}

#[derive(Debug)]
pub(super) struct ConnectionEvents {
    watched: Watched,
    times: Times,
    seen: Phase,
    stage: ConnectionStage,
    look: Pin<Box<Sleep>>,
    client_closed: bool,
}

/// State of a connection, which decides what the timer [`ConnectionEvents::look`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The router serves: the timer checks for idleness and for late heads.
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
pub(super) enum ConnectionEvent {
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

impl ConnectionEvents {
    pub(super) fn new(watched: Watched, times: Times) -> Self {
        Self {
            watched,
            times,
            seen: Phase::Serving,
            stage: ConnectionStage::Served,
            look: Box::pin(tokio::time::sleep(times.idle)),
            client_closed: false,
        }
    }

    /// Waits for the next event, and drops stalled responses meanwhile.
    pub(super) async fn next(&mut self) -> ConnectionEvent {
        loop {
            let event = match self.woken().await {
                Woken::Phase => self.enter_phase(),
                Woken::ClientClosed => {
                    self.client_closed = true;
                    self.watched.progress.client_closed();
                    let is_abandoned = self.watched.progress.is_abandoned();
                    is_abandoned.then_some(ConnectionEvent::ClientLeft)
                }
                Woken::Evicted => Some(ConnectionEvent::Evicted),
                Woken::HeadBegins if self.stage == ConnectionStage::Served => self.looked(),
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

    fn enter_phase(&mut self) -> Option<ConnectionEvent> {
        if self.seen == Phase::Cut {
            return Some(ConnectionEvent::Cut);
        }
        // GOAWAY in HTTP/2 loses no requests.
        if self.watched.progress.is_http2() {
            return Some(self.may_end());
        }
        self.watched.progress.was_used();
        let was_sending = self.watched.answers.are_any();
        self.look_after(self.times.unused, ConnectionStage::Leaving { was_sending });
        None
    }

    fn looked(&mut self) -> Option<ConnectionEvent> {
        match self.stage {
            ConnectionStage::Served => return self.look_at_idleness(),
            ConnectionStage::Leaving { was_sending } => {
                let is_sending = self.watched.answers.are_any();
                if !self.watched.progress.was_used() && !is_sending && !was_sending {
                    return Some(self.may_end());
                }
                let was_sending = is_sending;
                self.look_after(self.times.unused, ConnectionStage::Leaving { was_sending });
            }
            ConnectionStage::Told => {
                let idle_for = self.watched.progress.idle_for();
                if idle_for.is_some_and(|idle| idle >= LAST_LOOK) {
                    return Some(ConnectionEvent::Ended);
                }
                self.look_after(LAST_LOOK, ConnectionStage::Told);
            }
        }
        None
    }

    /// Returns the event that ends a connection whose head is late, or that is idle. Schedules the next check
    /// otherwise.
    fn look_at_idleness(&mut self) -> Option<ConnectionEvent> {
        let (progress, Times { head, idle, .. }) = (&self.watched.progress, self.times);
        let head_open_for = progress.head_open_for().unwrap_or_default();
        let idle_for = progress.idle_for().unwrap_or_default();
        if head_open_for >= head {
            return Some(ConnectionEvent::HeadIsDue);
        }
        let after = if progress.has_open_head() {
            head - head_open_for
        } else if idle_for < idle {
            idle - idle_for
        } else if progress.is_http2() {
            // GOAWAY loses no request.
            return Some(self.may_end());
        } else {
            return Some(ConnectionEvent::Idle);
        };
        self.look_after(after, ConnectionStage::Served);
        None
    }

    fn may_end(&mut self) -> ConnectionEvent {
        self.look_after(LAST_LOOK, ConnectionStage::Told);
        ConnectionEvent::MayEnd
    }

    fn look_after(&mut self, time: Duration, stage: ConnectionStage) {
        self.stage = stage;
        self.look = Box::pin(tokio::time::sleep(time));
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{Instant, sleep};

    use super::*;

    const TIMES: Times = Times {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        unused: Duration::from_secs(1),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the event that ends a connection on which this happens, and after how many seconds.
    async fn ends(happens: impl AsyncFnOnce(&Arc<Progress>)) -> Option<(ConnectionEvent, u64)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let progress = Arc::new(Progress::default());
        let (_phase, phase) = watch::channel(Phase::Serving);
        let watched = Watched {
            socket: Arc::new(Socket::plain(listener.accept().await.unwrap().0)),
            answers: Arc::new(Answers::new(seconds(120))),
            progress: Arc::clone(&progress),
            phase,
        };
        let (mut events, began) = (ConnectionEvents::new(watched, TIMES), Instant::now());
        let happening = async {
            happens(&progress).await;
            sleep(seconds(1_000)).await;
        };
        tokio::select! {
            event = events.next() => Some((event, began.elapsed().as_secs())),
            () = happening => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_after_the_idle_time() {
        assert_eq!(ends(async |_| {}).await, Some((ConnectionEvent::Idle, 75)));
        let requests = async |progress: &Arc<Progress>| {
            for _ in 0..3 {
                sleep(seconds(70)).await;
                drop(progress.request_began());
            }
            let open = progress.request_began();
            sleep(seconds(200)).await;
            drop(open);
        };
        assert_eq!(ends(requests).await, Some((ConnectionEvent::Idle, 410 + 75)));
        let announces = async |progress: &Arc<Progress>| progress.speaks_http2();
        assert_eq!(ends(announces).await, Some((ConnectionEvent::MayEnd, 75)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_is_late_some_time_after_its_first_byte() {
        let late = async |progress: &Arc<Progress>| {
            sleep(seconds(60)).await;
            progress.reads_head(Some(0));
            sleep(seconds(9)).await;
            progress.reads_head(Some(0));
        };
        assert_eq!(ends(late).await, Some((ConnectionEvent::HeadIsDue, 70)));
        let in_time = async |progress: &Arc<Progress>| {
            progress.reads_head(Some(0));
            sleep(seconds(9)).await;
            progress.reads_head(None);
            drop(progress.request_began());
        };
        assert_eq!(ends(in_time).await, Some((ConnectionEvent::Idle, 9 + 75)));
        let beside_a_stream = async |progress: &Arc<Progress>| {
            progress.speaks_http2();
            let _open = progress.request_began();
            sleep(seconds(20)).await;
            progress.reads_head(Some(1));
            sleep(seconds(100)).await;
        };
        assert_eq!(
            ends(beside_a_stream).await,
            Some((ConnectionEvent::HeadIsDue, 30))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipelined_head_has_its_time_after_the_earlier_response() {
        let pipelined = async |progress: &Arc<Progress>| {
            let open = progress.request_began();
            progress.reads_head(Some(1));
            sleep(seconds(35)).await;
            drop(open);
        };
        let ended = ends(pipelined).await;
        assert!(
            matches!(ended, Some((ConnectionEvent::HeadIsDue, 45..=55))),
            "{ended:?}"
        );
    }
}
