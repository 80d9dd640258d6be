//! What ends a connection besides hyper: timers, drain, the client's disconnect, eviction, too many pipelined bytes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Sleep;

use super::answers::Answers;
use super::progress::Progress;
use super::shared_socket::SharedSocket;
use tailroute_http::byte_reservation::ByteReservation;

/// Largest number of pipelined bytes that are read ahead of hyper.
const MAX_AHEAD_BYTES: usize = 64 * 1024;
/// Idle time after which a connection that has announced its end is closed.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Phase of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No shutdown.
    Serving,
    /// No new connections are accepted. Open ones announce that they close, and close when idle.
    Draining,
    /// All connections are closed. On the data port streams end with an error event first.
    Cut,
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
pub(super) struct ConnectionEvents<'a> {
    shared: &'a SharedSocket,
    progress: &'a Progress,
    answers: &'a Answers,
    phase: watch::Receiver<Phase>,
    times: Times,
    seen: Phase,
    stage: ConnectionStage,
    look: Pin<Box<Sleep>>,
}

/// State of a connection, which decides what the timer [`ConnectionEvents::look`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The router serves: the timer checks for idleness and for late heads.
    Served,
    /// The router drains, and the connection has not announced its end.
    Leaving { was_sending: bool },
    /// The connection has announced its end.
    Announced,
}

/// An event by which a connection may end or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// The connection should end, and can do so without losing a request.
    MayEnd,
    /// The router cuts its connections.
    Cut,
    Ends(ConnectionEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The connection ended normally, was idle for too long, or was broken by the client.
    Served,
    /// A head was not complete in time.
    TimedOut,
    /// The connection is closed at once: the client has disconnected, its resources are needed, or the router cuts it.
    Dropped,
}

impl<'a> ConnectionEvents<'a> {
    pub(super) fn new(
        shared: &'a SharedSocket,
        answers: &'a Answers,
        phase: watch::Receiver<Phase>,
        times: Times,
    ) -> Self {
        Self {
            shared,
            progress: shared.progress(),
            answers,
            phase,
            times,
            seen: Phase::Serving,
            stage: ConnectionStage::Served,
            look: Box::pin(tokio::time::sleep(times.idle)),
        }
    }

    /// Waits for the next event, and drops stalled responses meanwhile.
    pub(super) async fn next(&mut self) -> ConnectionEvent {
        loop {
            let (progress, seen) = (self.progress, self.seen);
            let next_phase = async {
                let now = self.phase.wait_for(|phase| *phase > seen).await;
                // Without a sender the server is gone, which cuts its connections.
                now.map_or(Phase::Cut, |now| *now)
            };
            let event = tokio::select! {
                biased;
                phase = next_phase => self.enter(phase),
                () = self.shared.socket.closed_by_client(), if !progress.is_client_closed() => {
                    progress.on_client_closed();
                    progress.is_abandoned().then_some(ConnectionEvent::Ends(ConnectionEnd::Dropped))
                }
                () = progress.evicted() => Some(ConnectionEvent::Ends(ConnectionEnd::Dropped)),
                () = progress.head_begins(), if self.stage == ConnectionStage::Served => self.looked(),
                () = self.look.as_mut() => self.looked(),
                never = self.answers.watch() => match never {},
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    fn enter(&mut self, phase: Phase) -> Option<ConnectionEvent> {
        self.seen = phase;
        if phase == Phase::Cut {
            return Some(ConnectionEvent::Cut);
        }
        // GOAWAY in HTTP/2 loses no requests.
        if self.progress.is_http2() {
            return Some(self.may_end());
        }
        self.progress.was_used();
        let was_sending = self.answers.are_any();
        self.look_after(self.times.unused, ConnectionStage::Leaving { was_sending });
        None
    }

    fn looked(&mut self) -> Option<ConnectionEvent> {
        match self.stage {
            ConnectionStage::Served => return self.look_at_idleness(),
            ConnectionStage::Leaving { was_sending } => {
                let is_sending = self.answers.are_any();
                if !self.progress.was_used() && !is_sending && !was_sending {
                    return Some(self.may_end());
                }
                let was_sending = is_sending;
                self.look_after(self.times.unused, ConnectionStage::Leaving { was_sending });
            }
            ConnectionStage::Announced => {
                let idle_for = self.progress.idle_for();
                if idle_for.is_some_and(|idle| idle >= LAST_LOOK) {
                    return Some(ConnectionEvent::Ends(ConnectionEnd::Dropped));
                }
                self.look_after(LAST_LOOK, ConnectionStage::Announced);
            }
        }
        None
    }

    /// Returns the event that ends a connection whose head is late, or that is idle. Schedules the next check
    /// otherwise.
    fn look_at_idleness(&mut self) -> Option<ConnectionEvent> {
        let (progress, Times { head, idle, .. }) = (self.progress, self.times);
        let head_open_for = progress.head_open_for().unwrap_or_default();
        let idle_for = progress.idle_for().unwrap_or_default();
        if head_open_for >= head {
            return Some(ConnectionEvent::Ends(ConnectionEnd::TimedOut));
        }
        let after = if progress.has_open_head() {
            head - head_open_for
        } else if idle_for < idle {
            idle - idle_for
        } else if progress.is_http2() {
            // GOAWAY loses no request.
            return Some(self.may_end());
        } else {
            return Some(ConnectionEvent::Ends(ConnectionEnd::Served));
        };
        self.look_after(after, ConnectionStage::Served);
        None
    }

    fn may_end(&mut self) -> ConnectionEvent {
        self.look_after(LAST_LOOK, ConnectionStage::Announced);
        ConnectionEvent::MayEnd
    }

    fn look_after(&mut self, time: Duration, stage: ConnectionStage) {
        self.stage = stage;
        self.look = Box::pin(tokio::time::sleep(time));
    }
}

/// Reads bytes that the client pipelines behind an unanswered request, within the bound of `room`. Must be polled after
/// hyper, by the same task. Ready if the client has disconnected, or pipelines more.
///
/// hyper stops reading while its buffer holds bytes of a later request. Once the kernel's receive buffer is full too,
/// the client's FIN cannot arrive. So these bytes are read ahead, up to a limit, as RFC 9112, section 9.3.2, permits.
pub(super) fn poll_pipelined(
    shared: &SharedSocket,
    room: &mut ByteReservation,
    cx: &mut Context<'_>,
) -> Poll<ConnectionEvent> {
    let progress = shared.progress();
    // hyper may have taken some bytes since the last call.
    let _ = room.resize(shared.bytes_ahead());
    while progress.has_pipelined() {
        let has_more = matches!(ready!(shared.poll_read_ahead(cx)), Ok(true));
        let ahead = shared.bytes_ahead();
        if !has_more || ahead > MAX_AHEAD_BYTES || !room.resize(ahead) {
            return Poll::Ready(ConnectionEvent::Ends(ConnectionEnd::Dropped));
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use tokio::io::AsyncWriteExt as _;
    use tokio::time::{Instant, sleep};

    use super::*;

    const TIMES: Times = Times {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        unused: Duration::from_secs(1),
    };

    const IDLE: ConnectionEvent = ConnectionEvent::Ends(ConnectionEnd::Served);
    const HEAD_IS_DUE: ConnectionEvent = ConnectionEvent::Ends(ConnectionEnd::TimedOut);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the event that ends a connection on which this happens, and after how many seconds.
    async fn ends(happens: impl AsyncFnOnce(&Arc<Progress>)) -> Option<(ConnectionEvent, u64)> {
        let (_client, socket) = SharedSocket::pair().await;
        let (answers, progress) = (Answers::new(seconds(120)), Arc::clone(socket.progress()));
        let (_phase, phase) = watch::channel(Phase::Serving);
        let mut events = ConnectionEvents::new(&socket, &answers, phase, TIMES);
        let began = Instant::now();
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
        assert_eq!(ends(async |_| {}).await, Some((IDLE, 75)));
        let requests = async |progress: &Arc<Progress>| {
            for _ in 0..3 {
                sleep(seconds(70)).await;
                drop(progress.request_began());
            }
            let open = progress.request_began();
            sleep(seconds(200)).await;
            drop(open);
        };
        assert_eq!(ends(requests).await, Some((IDLE, 410 + 75)));
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
        assert_eq!(ends(late).await, Some((HEAD_IS_DUE, 70)));
        let in_time = async |progress: &Arc<Progress>| {
            progress.reads_head(Some(0));
            sleep(seconds(9)).await;
            progress.reads_head(None);
            drop(progress.request_began());
        };
        assert_eq!(ends(in_time).await, Some((IDLE, 9 + 75)));
        let beside_a_stream = async |progress: &Arc<Progress>| {
            progress.speaks_http2();
            let _open = progress.request_began();
            sleep(seconds(20)).await;
            progress.reads_head(Some(1));
            sleep(seconds(100)).await;
        };
        assert_eq!(ends(beside_a_stream).await, Some((HEAD_IS_DUE, 30)));
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
        assert!(matches!(ended, Some((HEAD_IS_DUE, 45..=55))), "{ended:?}");
    }

    #[tokio::test]
    async fn bytes_that_hyper_has_taken_are_not_reserved() {
        let (mut client, socket) = SharedSocket::pair().await;
        let total = Arc::default();
        let mut room = ByteReservation::new(Arc::clone(&total), 1_000);
        let _open = socket.progress().request_began();
        socket.progress().read_requests(2, true);
        client.write_all(b"ab").await.unwrap();
        let mut poll = async || {
            let polled = poll_fn(|cx| Poll::Ready(poll_pipelined(&socket, &mut room, cx))).await;
            assert!(polled.is_pending());
            total.load(Ordering::Relaxed)
        };
        while poll().await == 0 {
            tokio::task::yield_now().await;
        }
        let mut memory = [0; 2];
        let mut buf = tokio::io::ReadBuf::new(&mut memory);
        poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap();
        assert_eq!((buf.filled(), poll().await), (&b"ab"[..], 0));
    }

    #[tokio::test]
    async fn pipelined_bytes_are_read_ahead_up_to_a_limit_or_the_end_of_the_input() {
        let dropped = Some(ConnectionEvent::Ends(ConnectionEnd::Dropped));
        for (sent, max, is_all, expected) in [
            (3, usize::MAX, false, None),
            (3, usize::MAX, true, dropped),
            (3, 2, false, dropped),
            (MAX_AHEAD_BYTES, usize::MAX, false, None),
            (MAX_AHEAD_BYTES + 1, usize::MAX, false, dropped),
        ] {
            let (mut client, shared) = SharedSocket::pair().await;
            let (total, _request) = (Arc::default(), shared.progress().request_began());
            let mut room = ByteReservation::new(Arc::clone(&total), max);
            shared.progress().read_requests(1, true);
            let polling = poll_fn(|cx| poll_pipelined(&shared, &mut room, cx));
            let writing = async {
                client.write_all(&vec![b'a'; sent]).await.unwrap();
                if is_all {
                    client.shutdown().await.unwrap();
                }
                let all_are_counted = async {
                    while is_all || total.load(Ordering::Relaxed) < sent {
                        tokio::task::yield_now().await;
                    }
                };
                let _ = tokio::time::timeout(seconds(5), all_are_counted).await;
            };
            let event = tokio::select! {
                biased;
                event = polling => Some(event),
                () = writing => None,
            };
            assert_eq!(event, expected, "{sent} bytes of {max}");
        }
    }
}
