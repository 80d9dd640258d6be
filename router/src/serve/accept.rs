//! Connections: limits, timeouts, HTTP/1.1 and h2c on one port, drain.
//!
//! A connection's task is woken for each token that passes. What may happen to it besides, which is hardly ever, is one
//! future with a waker of its own ([`Events`]).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, HeaderValue};
use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;
use tracing::{debug, warn};

use super::Phase;
use super::checked::Checked;
use super::client_io::{ClientIo, Progress};
use super::express::{Express, Outgoing};
use super::passage::Carrier;
use super::socket::Socket;
use super::stalled::Answers;
use crate::app::App;
use crate::bell::rarely;
use crate::body::{Body, BodyError};
use crate::error::ApiError;
use crate::path;
use crate::path::arrival::{self, Peer};

/// Room above the configured header limit within which the answer to headers that are too large is the router's own.
const HEADER_SLACK: usize = 256 * 1024;
/// For a client to use a connection once more after an answer that did not say yet that it ends, at least.
const IDLE_GRACE: Duration = Duration::from_secs(1);
/// Time for a connection that is cut to say so.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// Rest after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until told to stop. Each of them holds a receiver of the phase for as long as it is served.
pub(super) async fn run(app: Arc<App>, listener: TcpListener, mut phase: watch::Receiver<Phase>) {
    let places = Arc::new(Semaphore::new(
        app.config
            .limits
            .max_connections
            .get()
            .min(Semaphore::MAX_PERMITS),
    ));
    let server = Arc::new(builder(&app));
    let phases = phase.clone();
    let begin = |stream: TcpStream, address, place| {
        tokio::spawn(serve(
            Arc::clone(&app),
            Arc::clone(&server),
            (stream, arrival::peer(&app, address, app.tls.acceptor().is_some())),
            (place, phases.clone()),
        ));
    };
    loop {
        // A full house leaves new clients in the kernel's queue rather than refusing them.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
            accepted = accepted => accepted,
        };
        match (accepted, place) {
            (Ok((stream, address)), Ok(place)) => begin(stream, address, place),
            (Err(error), _) => {
                warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            (_, Err(_)) => break,
        }
    }
    // Whoever is in the queue has connected already, and would be reset with it. If the queue is another process's too
    // by now, that one would have taken them as well.
    while let Some(Ok((stream, address))) = listener.accept().now_or_never() {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            break;
        };
        begin(stream, address, place);
    }
}

fn builder(app: &App) -> Builder<TokioExecutor> {
    let limits = &app.config.limits;
    let headers = max_head(app);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // At most 100 header fields, hyper's own limit: for more, each head would be read into memory that is asked for first.
        // A token leaves as a chunk's size, itself and a line break: to put them together costs less than a list of them.
        .writev(false)
        .max_buf_size(headers);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(headers).unwrap_or(u32::MAX))
        .enable_connect_protocol()
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(1024);
    builder
}

/// Most bytes of a head that hyper reads.
fn max_head(app: &App) -> usize {
    app.config
        .limits
        .max_header_bytes
        .get()
        .saturating_add(HEADER_SLACK)
}

async fn serve(
    app: Arc<App>,
    server: Arc<Builder<TokioExecutor>>,
    (stream, peer): (TcpStream, Arc<Peer>),
    (place, phase): (OwnedSemaphorePermit, watch::Receiver<Phase>),
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY");
    }
    let Some(stream) = open(&app, stream).await else {
        return;
    };
    let (stream, place) = (Arc::new(stream), Arc::new(place));
    let progress = Arc::new(Progress::default());
    let patience = app.live().limits.idle_timeout;
    let answers = Arc::new(Answers::new(patience));
    let service = {
        let (app, progress) = (Arc::clone(&app), Arc::clone(&progress));
        let answers = Arc::clone(&answers);
        service_fn(move |request: hyper::Request<Incoming>| {
            progress.request_began(request.version());
            let (app, peer) = (Arc::clone(&app), Arc::clone(&peer));
            let (progress, answers) = (Arc::clone(&progress), Arc::clone(&answers));
            async move {
                let version = request.version();
                let carrier = Carrier::of(&request);
                let mut response = path::handle(Arc::clone(&app), peer, request).await;
                sent_as(&app, version, &progress, &mut response);
                Ok::<_, Infallible>(answers.send(response, carrier))
            }
        })
    };
    let outgoing = Arc::new(Outgoing::default());
    let socket = ClientIo::new(
        (Arc::clone(&stream), Arc::clone(&outgoing)),
        Arc::clone(&progress),
        Arc::clone(&place),
        patience,
    );
    let io = TokioIo::new(Checked::new(socket, Arc::clone(&progress), max_head(&app)));
    let express = Express::new(Arc::clone(&stream), outgoing, Arc::clone(&answers));
    let events = Events::new(
        app.config.limits.header_timeout,
        // Whoever has so long to hear of the end by others has as long to hear of it here.
        IDLE_GRACE.max(app.live().limits.drain_delay),
        phase,
        (answers, Arc::clone(&progress)),
    );
    // Ends with the block, so that nothing of it is left when the socket is closed: a drain waits for connections, not
    // for clients that take their time to close.
    let ended = {
        let connection = pin!(server.serve_connection_with_upgrades(io, service).into_owned());
        until_it_ends((connection, express), events, &progress).await
    };
    if ended == Ended::Cut || progress.is_upgraded() {
        // What is upgraded is the tunnel's socket.
        return;
    }
    if ended == Ended::TimedOut && progress.half_a_request() {
        let error = ApiError::RequestTimeout(app.config.limits.header_timeout);
        super::client_io::say(&stream, &error).await;
    }
    super::client_io::close(&stream).await;
}

/// What an answer means for its connection.
fn sent_as(app: &App, version: Version, progress: &Progress, response: &mut http::Response<Body>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        progress.upgrade();
    } else if app.is_draining() && version <= Version::HTTP_11 {
        // So that the client's next request goes elsewhere, instead of to a connection about to close.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// As it should, or because its client broke it.
    Served,
    /// No request came, or not all of its head.
    TimedOut,
    /// The router has to go.
    Cut,
}

/// What may happen to a connection besides what its two sides do.
#[derive(Debug)]
struct Events {
    /// hyper's own timer starts once it knows which version it reads; until then this one counts.
    first: Option<Pin<Box<Sleep>>>,
    phase: watch::Receiver<Phase>,
    seen: Phase,
    answers: Arc<Answers>,
    progress: Arc<Progress>,
    /// For how long the connection must not have been used before it may end.
    unused_for: Duration,
    /// While the router drains, and the connection does not know yet that it ends.
    leaving: Option<Leaving>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The time for the head of a first request is over.
    FirstIsDue,
    /// The router drains, and the connection can end without losing a request.
    MayEnd,
    /// The router has to go.
    Cut,
}

/// A connection of HTTP/1 that is closed while its client sends the next request loses that request. One that is used gets to
/// know from an answer that it ends, but a stream that began before the drain has not said so, and its client may ask on
/// as soon as it is over. So it is closed when neither a request nor an answer was on it for a while.
#[derive(Debug)]
struct Leaving {
    /// When it is looked at next.
    look: Pin<Box<Sleep>>,
    was_sending: bool,
}

impl Leaving {
    fn new(unused_for: Duration, was_sending: bool) -> Self {
        Self {
            look: Box::pin(tokio::time::sleep(unused_for)),
            was_sending,
        }
    }
}

impl Events {
    fn new(
        first_within: Duration,
        unused_for: Duration,
        phase: watch::Receiver<Phase>,
        (answers, progress): (Arc<Answers>, Arc<Progress>),
    ) -> Self {
        Self {
            first: Some(Box::pin(tokio::time::sleep(first_within))),
            phase,
            seen: Phase::Serving,
            answers,
            progress,
            unused_for,
            leaving: None,
        }
    }

    /// The next one. Answers that are stuck are given up meanwhile.
    async fn next(&mut self) -> Event {
        loop {
            let first_is_due = when(self.first.as_mut());
            let look = when(self.leaving.as_mut().map(|leaving| &mut leaving.look));
            let seen = self.seen;
            tokio::select! {
                biased;
                now = self.phase.wait_for(|phase| *phase > seen) => {
                    // A server that is gone without a word takes its connections along.
                    self.seen = now.map_or(Phase::Cut, |now| *now);
                    if self.seen == Phase::Cut {
                        return Event::Cut;
                    }
                    self.progress.was_used();
                    self.leaving = Some(Leaving::new(self.unused_for, self.answers.are_any()));
                }
                () = first_is_due => {
                    self.first = None;
                    return Event::FirstIsDue;
                }
                () = look => {}
                never = self.answers.watch() => match never {},
            }
            if self.may_end() {
                self.leaving = None;
                return Event::MayEnd;
            }
        }
    }

    /// Whether a connection that is leaving may end; looked at again if not. HTTP/2 has a word for it that loses nothing.
    fn may_end(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else {
            return false;
        };
        if self.progress.is_http2() {
            return true;
        }
        if !leaving.look.is_elapsed() {
            return false;
        }
        let is_sending = self.answers.are_any();
        if !self.progress.was_used() && !is_sending && !leaving.was_sending {
            return true;
        }
        *leaving = Leaving::new(self.unused_for, is_sending);
        false
    }
}

/// Ends with this timer; never without one.
async fn when(timer: Option<&mut Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

/// What comes of serving a connection.
#[derive(Debug)]
enum Happened {
    /// hyper is done with it.
    Over(Result<(), BodyError>),
    Besides(Event),
}

/// Serves a connection until it ends by itself or by what happens to it.
async fn until_it_ends<C>(
    (mut connection, mut express): (Pin<&mut C>, Express),
    mut events: Events,
    progress: &Progress,
) -> Ended
where
    C: GracefulConnection<Error = BodyError>,
{
    loop {
        let mut event = pin!(rarely(events.next()));
        let serving = poll_fn(|cx| {
            express.poll(cx, |cx| match connection.as_mut().poll(cx) {
                Poll::Ready(over) => Poll::Ready(Happened::Over(over)),
                Poll::Pending => event.as_mut().poll(cx).map(Happened::Besides),
            })
        });
        match serving.await {
            Happened::Over(over) if is_timeout(&over) => return Ended::TimedOut,
            Happened::Over(_) => return Ended::Served,
            Happened::Besides(Event::FirstIsDue) if progress.any_request() => {}
            Happened::Besides(Event::FirstIsDue) => return Ended::TimedOut,
            Happened::Besides(Event::Cut) => break,
            Happened::Besides(Event::MayEnd) => connection.as_mut().graceful_shutdown(),
        }
        express.ring();
    }
    // Streams end with an event that says why, and then break off; a client that does not read does not learn. Whatever is
    // still answered after that is dropped here, and its request to the worker with it.
    express.ring();
    let rest = poll_fn(|cx| express.poll(cx, |cx| connection.as_mut().poll(cx)));
    let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    Ended::Cut
}

/// Shakes hands, if the data port is encrypted, within the time that a client has for a request's head.
async fn open(app: &App, stream: TcpStream) -> Option<Socket> {
    let Some(acceptor) = app.tls.acceptor() else {
        return Some(Socket::Plain(stream));
    };
    match tokio::time::timeout(app.config.limits.header_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Socket::encrypted(stream)),
        Ok(Err(error)) => {
            debug!(%error, "no TLS");
            app.metrics.no_tls();
            None
        }
        Err(_) => {
            app.metrics.no_tls();
            None
        }
    }
}

fn is_timeout(ended: &Result<(), BodyError>) -> bool {
    let Err(error) = ended else { return false };
    debug!(%error, "connection ended");
    error
        .downcast_ref::<hyper::Error>()
        .is_some_and(hyper::Error::is_timeout)
}
