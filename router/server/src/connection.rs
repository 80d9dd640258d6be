//! Serves one client connection: limits, timeouts, HTTP/1.1 and HTTP/2 on one port, drain.
//!
//! ```text
//!                             +-- ClientIo, FramingCheck <-> hyper <-> handle   requests and responses
//!                             |                                |
//! client <-> SharedSocket <---+-- FastPath <--------------- Answers             pieces of a stream
//!                             +-- poll_pipelined                                bytes that hyper does not read yet
//!                             +-- ConnectionEvents <------- Progress, Phase     timeouts, disconnect, eviction, drain
//! ```
//!
//! **Reads.** hyper reads through [`ClientIo`], whose [`FramingCheck`] rejects ambiguous bytes. While a request is
//! unanswered, [`poll_pipelined`] reads ahead what hyper leaves unread.
//!
//! **Writes.** hyper writes through [`ClientIo`]. Between the head and the end of a stream, [`FastPath`] writes the
//! pieces. [`Answers`] has the bodies; hyper and the fast path poll a body in turn.
//!
//! **Ends.** hyper ends the connection at the end of the input and on errors, also if the client accepts no output.
//! [`ConnectionEvents`] and [`poll_pipelined`] end it for other reasons. An HTTP/2 response that is not read ends alone.
//!
//! **Shared.** [`SharedSocket`] lives until the socket closes, in a tunnel too, and has the connection's permit.
//! [`Answers`] lives as long as the responses. `Progress` knows the open requests and the idle time; the requests and
//! the port's limit share it. The connection's task owns everything else.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::debug;

use super::answers::{Answers, Carrier};
use super::check::FramingCheck;
use super::client_io::{self, ClientIo};
use super::connections::ConnectionPermit;
use super::events::{ConnectionEnd, ConnectionEvent, ConnectionEvents, Phase, Times, poll_pipelined};
use super::fast_path::FastPath;
use super::progress::OpenRequest;
use super::shared_socket::SharedSocket;
use super::socket::{Socket, Tcp};
use protocol::error::ApiError;
use state::State;
use tailroute_http::body::{Body, BodyError};
use tailroute_http::byte_reservation::ByteReservation;
use tailroute_http::rare_waker::RareWaker;

/// Bytes of a head beyond the configured limit, for syntax around names and values. Within them the router's own
/// check rejects the head, with the error format of the client's API.
const HEAD_SLACK_BYTES: usize = 16 * 1024;
/// Bytes by which hyper's HTTP/1 buffers exceed the longest head. The sum bounds a read of a body, and unsent output.
const BUFFER_BEYOND_HEAD_BYTES: usize = 256 * 1024;
/// HTTP/2 flow control window of a stream: bytes of a body that a client may send before the router reads it.
pub const H2_STREAM_BYTES: u32 = 256 * 1024;
/// HTTP/2 flow control window of a connection.
pub const H2_CONNECTION_BYTES: u32 = 1024 * 1024;
/// Size in bytes of the buffer for a response to an HTTP/2 client that reads slowly.
pub const H2_SEND_BYTES: usize = 64 * 1024;
/// Shortest time without requests after which a draining router ends a keep-alive connection that has not announced its
/// end.
const IDLE_GRACE: Duration = Duration::from_secs(1);
/// Time for a cut connection to send its last bytes.
const LAST_WORDS: Duration = Duration::from_millis(250);
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);

/// State and settings that all connections are served with.
#[derive(Clone)]
pub struct ConnectionServer {
    state: Arc<State>,
    server: Arc<Builder<TokioExecutor>>,
    max_head: usize,
}

impl ConnectionServer {
    /// Configures the server from the limits.
    pub fn new(state: &Arc<State>) -> Self {
        let limits = &state.config.limits;
        let max_head = limits.max_header_bytes.get().saturating_add(HEAD_SLACK_BYTES);
        let mut server = Builder::new(TokioExecutor::new());
        server
            .http1()
            // A connection's own timers ([`ConnectionEvents`]) distinguish a slow head from no head.
            .header_read_timeout(None)
            // Copying a chunk's size, a token and a line break together costs less than a vectored write.
            .writev(false)
            .max_buf_size(max_head.saturating_add(BUFFER_BEYOND_HEAD_BYTES));
        server
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(max_head).unwrap_or(u32::MAX))
            .enable_connect_protocol()
            .keep_alive_interval(H2_PING_INTERVAL)
            .initial_stream_window_size(H2_STREAM_BYTES)
            .initial_connection_window_size(H2_CONNECTION_BYTES)
            .max_send_buf_size(H2_SEND_BYTES)
            .max_concurrent_streams(1024);
        Self {
            state: Arc::clone(state),
            server: Arc::new(server),
            max_head,
        }
    }

    /// Serves a connection from its first byte to its last. `handle` answers its requests.
    pub async fn serve<H, F>(
        self,
        stream: TcpStream,
        handle: H,
        permit: ConnectionPermit,
        phase: watch::Receiver<Phase>,
    ) where
        H: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let opened = tokio::select! {
            biased;
            opened = open(&self.state, stream) => opened,
            () = permit.progress().evicted() => None,
        };
        let Some(socket) = opened else {
            return;
        };
        let shared = Arc::new(SharedSocket::new(socket, permit));
        let (socket, progress) = (&shared.socket, shared.progress());
        let ended = self.converse(&shared, handle, phase).await;
        if matches!(ended, ConnectionEnd::Dropped) || progress.is_upgraded() {
            // A dropped connection closes at once; an upgraded socket belongs to the tunnel.
            return;
        }
        let closing = async {
            match progress.refusal() {
                // The error is written as HTTP/1.1.
                _ if progress.is_http2() => {}
                Some(error) => client_io::say(socket, error).await,
                None if ended == ConnectionEnd::TimedOut => {
                    let error = ApiError::RequestTimeout(self.state.config.limits.header_timeout);
                    client_io::say(socket, &error).await;
                }
                None => {}
            }
            client_io::close(socket).await;
        };
        tokio::select! {
            () = closing => {}
            () = progress.evicted() => {}
        }
    }

    fn times(&self) -> Times {
        let live = self.state.routing.live();
        Times {
            head: self.state.config.limits.header_timeout,
            idle: live.limits.client_idle_timeout,
            // Clients that learn of the shutdown from elsewhere within the drain delay may still use this connection.
            unused: IDLE_GRACE.max(live.limits.drain_delay),
        }
    }

    /// Serves requests until the connection ends. Drops its receiver of the phase before the socket is closed: a drain
    /// waits for these receivers, so not for clients that are slow to close.
    async fn converse<H, F>(
        &self,
        shared: &Arc<SharedSocket>,
        handle: H,
        phase: watch::Receiver<Phase>,
    ) -> ConnectionEnd
    where
        H: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let patience = self.state.routing.live().limits.idle_timeout;
        let answers = Arc::new(Answers::new(patience));
        let check = FramingCheck::new(self.max_head, self.state.request_reservation());
        let io = ClientIo::new(Arc::clone(shared), Some(check), patience);
        let service = service_fn(|request: Request<Incoming>| {
            let (state, answers) = (Arc::clone(&self.state), Arc::clone(&answers));
            let open = shared.progress().request_began();
            let (version, carrier) = (request.version(), Carrier::of(&request));
            let responding = handle(request);
            async move {
                let mut response = responding.await;
                sent_as(&state, version, &open, &mut response);
                Ok::<_, Infallible>(answers.send(response, carrier, open))
            }
        });
        let connection = self
            .server
            .serve_connection_with_upgrades(TokioIo::new(io), service);
        let connection = pin!(connection.into_owned());
        let fast_path = FastPath::new(shared, &answers);
        let events = ConnectionEvents::new(shared, &answers, phase, self.times());
        until_it_ends(
            connection,
            fast_path,
            events,
            shared,
            self.state.request_reservation(),
        )
        .await
    }
}

fn sent_as(state: &State, version: Version, open: &OpenRequest, response: &mut Response<Body>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        open.connection().upgrade();
    } else if state.operations.is_draining() && version <= Version::HTTP_11 {
        // The client's next request then goes elsewhere, not to a connection about to close.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

async fn until_it_ends<C>(
    mut connection: Pin<&mut C>,
    mut fast_path: FastPath<'_>,
    mut events: ConnectionEvents<'_>,
    shared: &SharedSocket,
    mut room: ByteReservation,
) -> ConnectionEnd
where
    C: GracefulConnection<Error = BodyError>,
{
    loop {
        let mut event = pin!(events.next());
        let mut waker = RareWaker::default();
        let serving = poll_fn(|cx| {
            fast_path.poll(cx, |cx| {
                if let Poll::Ready(served) = connection.as_mut().poll(cx) {
                    if let Err(error) = served {
                        debug!(%error, "connection ended");
                    }
                    return Poll::Ready(ConnectionEvent::Ends(ConnectionEnd::Served));
                }
                if shared.progress().is_abandoned() {
                    // hyper has answered what it could; the remaining requests are from a client that has disconnected.
                    return Poll::Ready(ConnectionEvent::Ends(ConnectionEnd::Dropped));
                }
                match poll_pipelined(shared, &mut room, cx) {
                    Poll::Pending if waker.was_woken(cx) => {
                        event.as_mut().poll(&mut Context::from_waker(waker.waker()))
                    }
                    polled => polled,
                }
            })
        });
        match serving.await {
            ConnectionEvent::Ends(end) => return end,
            ConnectionEvent::Cut => break,
            ConnectionEvent::MayEnd => connection.as_mut().graceful_shutdown(),
        }
        fast_path.wake();
    }
    // Streams end with an error event, then the connection is cut. Pending requests are cancelled at their workers.
    fast_path.wake();
    let rest = poll_fn(|cx| fast_path.poll(cx, |cx| connection.as_mut().poll(cx)));
    let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    ConnectionEnd::Dropped
}

/// Performs the TLS handshake, if TLS is on, within the timeout of a request's head.
async fn open(state: &State, stream: TcpStream) -> Option<Socket> {
    let Some(acceptor) = state.transport.tls.acceptor() else {
        return Some(Socket::plain(stream));
    };
    let shaking_hands = acceptor.accept(Tcp::new(stream));
    match tokio::time::timeout(state.config.limits.header_timeout, shaking_hands).await {
        Ok(Ok(stream)) => return Some(Socket::encrypted(stream)),
        Ok(Err(error)) => debug!(%error, "no TLS"),
        Err(_) => {}
    }
    state.routing.metrics.no_tls();
    None
}
