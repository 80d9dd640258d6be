//! Connections: limits, timeouts, HTTP/1.1 and h2c on one port, drain.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, HeaderValue};
use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

use super::Phase;
use super::checked::Checked;
use super::client_io::{ClientIo, Progress};
use super::socket::Socket;
use super::stalled::Answers;
use crate::app::App;
use crate::bell::rarely;
use crate::error::ApiError;
use crate::path;
use crate::path::arrival::{self, Peer};

/// Room above the configured header limit within which the answer to headers that are too large is the router's own.
const HEADER_SLACK: usize = 256 * 1024;
/// Most header fields of a request.
const MAX_HEADERS: usize = 512;
/// Time for a connection that is cut to say so.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// Rest after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until told to stop; returns those that are still open.
pub(super) async fn run(
    app: Arc<App>,
    listener: TcpListener,
    mut phase: watch::Receiver<Phase>,
) -> GracefulShutdown {
    let connections = GracefulShutdown::new();
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
            connections.watcher(),
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
    connections
}

fn builder(app: &App) -> Builder<TokioExecutor> {
    let limits = &app.config.limits;
    let headers = max_head(app);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(MAX_HEADERS)
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
    watcher: Watcher,
    (place, mut phase): (OwnedSemaphorePermit, watch::Receiver<Phase>),
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
            progress.request_began();
            let (app, peer) = (Arc::clone(&app), Arc::clone(&peer));
            let (progress, answers) = (Arc::clone(&progress), Arc::clone(&answers));
            async move {
                let version = request.version();
                let mut response = path::handle(Arc::clone(&app), peer, request).await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    progress.upgrade();
                } else if app.is_draining() && version <= Version::HTTP_11 {
                    // So that the client's next request goes elsewhere, instead of to a connection about to close.
                    response
                        .headers_mut()
                        .insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answers.send(response))
            }
        })
    };
    let socket = ClientIo::new(
        Arc::clone(&stream),
        Arc::clone(&progress),
        Arc::clone(&place),
        patience,
    );
    let io = TokioIo::new(Checked::new(socket, Arc::clone(&progress), max_head(&app)));
    // Ends with the block, so that nothing of it is left when the socket is closed: a drain waits for connections, not
    // for clients that take their time to close.
    let served = async {
        let connection = watcher.watch(server.serve_connection_with_upgrades(io, service).into_owned());
        tokio::pin!(connection);
        // hyper's own timer starts once it knows which version it reads; until then this one counts.
        let first = rarely(tokio::time::sleep(app.config.limits.header_timeout));
        tokio::select! {
            biased;
            ended = &mut connection => is_timeout(ended),
            () = first => if progress.any_request() { is_timeout(connection.await) } else { true },
        }
    };
    tokio::pin!(served);
    let cut = rarely(async {
        let _ = phase.wait_for(|phase| *phase == Phase::Cut).await;
    });
    let timed_out = tokio::select! {
        biased;
        timed_out = &mut served => timed_out,
        never = rarely(answers.watch()) => match never {},
        () = cut => {
            // Streams end with an event that says why, and then break off; a client that does not read does not learn.
            // Whatever is still answered after that is dropped here, and its request to the worker with it.
            let _ = tokio::time::timeout(LAST_WORDS, served).await;
            return;
        }
    };
    if progress.is_upgraded() {
        // The socket is the tunnel's.
        return;
    }
    if timed_out && progress.half_a_request() {
        let error = ApiError::RequestTimeout(app.config.limits.header_timeout);
        super::client_io::say(&stream, &error).await;
    }
    super::client_io::close(&stream).await;
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

fn is_timeout(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) -> bool {
    let Err(error) = ended else { return false };
    debug!(%error, "connection ended");
    error
        .downcast_ref::<hyper::Error>()
        .is_some_and(hyper::Error::is_timeout)
}
