//! The endpoint picker's port: HTTP/2 connections of gateways, with a stream of messages per request.
//!
//! Connections, streams per connection, message sizes and pending output per stream are bounded. Each request has a
//! task, which ends with the gateway's stream, so that its limits hold while the gateway reads nothing. At the
//! connection limit, a connection without streams is closed for a new one.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use config::EndpointPicker;
use futures_util::{FutureExt as _, Stream};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Status, Streaming};
use tracing::{debug, error, warn};

use super::bounded::{BoundedCodec, CountedBody, MOST_BESIDE_BODIES, SizedMessage};
use super::exchange::{Going, talk};
use super::inbox::Inbox;
use super::wire::{PATH, ProcessingResponse};
use metrics::Open;
use proxy::Proxy;
use server::Phase;
use server::client_io::ClientIo;
use server::connections::{ConnectionPermit, Connections};
use server::progress::OpenRequest;
use server::socket::{Socket, Tcp};
use state::State;
use state::supervise::{Task, until_done};

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// Largest number of pending messages to a gateway, per request.
const WAITING: usize = 4;
const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// Accepts connections until the router drains. Each connection holds a receiver of the phase while it is served.
pub async fn run(
    proxy: Arc<Proxy>,
    settings: EndpointPicker,
    listener: TcpListener,
    phase: watch::Receiver<Phase>,
) {
    let (of, port) = (Arc::clone(&proxy), Arc::new(PickerPort { settings, listener }));
    let accepting = move || accept(Arc::clone(&of), Arc::clone(&port), phase.clone());
    until_done(Arc::clone(&proxy.state), Task::only("picker_port"), accepting).await;
}

struct PickerPort {
    settings: EndpointPicker,
    listener: TcpListener,
}

async fn accept(proxy: Arc<Proxy>, port: Arc<PickerPort>, mut phase: watch::Receiver<Phase>) {
    let PickerPort { settings, listener } = &*port;
    let connections = Connections::new(settings.max_connections);
    let phases = phase.clone();
    let begin = |stream: TcpStream, permit| {
        tokio::spawn(connection(
            Arc::clone(&proxy),
            settings.clone(),
            stream,
            permit,
            phases.clone(),
        ));
    };
    loop {
        let accepted = async {
            let (stream, from) = listener.accept().await?;
            let permit = connections.acquire(from.ip()).await;
            Ok::<_, io::Error>((stream, permit))
        };
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, permit)) => begin(stream, permit),
            Err(error) => {
                warn!(%error, "cannot accept connections on the endpoint picker's port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Clients in the backlog are connected already and would be reset with the socket.
    while let Some(Ok((stream, from))) = listener.accept().now_or_never() {
        let Some(permit) = connections.try_acquire(from.ip()) else {
            return;
        };
        begin(stream, permit);
    }
}

async fn connection(
    proxy: Arc<Proxy>,
    settings: EndpointPicker,
    stream: TcpStream,
    permit: ConnectionPermit,
    mut phase: watch::Receiver<Phase>,
) {
    // Messages are small, and the gateway waits for each.
    let _ = stream.set_nodelay(true);
    let progress = Arc::clone(permit.progress());
    let opened = tokio::select! {
        opened = open(&proxy.state, &settings, stream) => opened,
        () = progress.evicted() => None,
    };
    let Some(socket) = opened else {
        return;
    };
    let patience = proxy.state.routing.live().limits.idle_timeout;
    let io = TokioIo::new(ClientIo::of_other_port(socket, permit, patience));
    let asked = Arc::clone(&progress);
    let service = service_fn(move |request: Request<Incoming>| {
        let processor = Processor(Arc::clone(&proxy), Arc::new(asked.request_began()));
        async move { Ok::<_, Infallible>(answer(processor, request).await) }
    });
    let server = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.max_streams)
        .max_header_list_size(MAX_HEAD_BYTES)
        .keep_alive_interval(H2_PING_INTERVAL)
        .serve_connection(io, service);
    let mut server = pin!(server);
    let mut seen = Phase::Serving;
    loop {
        tokio::select! {
            biased;
            ended = server.as_mut() => {
                if let Err(error) = ended {
                    debug!(%error, "gateway connection failed");
                }
                return;
            }
            now = phase.wait_for(|phase| *phase > seen) => {
                seen = now.map_or(Phase::Cut, |now| *now);
                if seen == Phase::Cut {
                    return;
                }
                server.as_mut().graceful_shutdown();
            }
            () = progress.evicted() => {
                debug!("closed an idle gateway connection to make room");
                return;
            }
        }
    }
}

/// Performs the TLS handshake, if TLS is on, or waits for the first byte, so that a silent connection ends with
/// `limits.header_timeout_s`.
async fn open(state: &State, settings: &EndpointPicker, stream: TcpStream) -> Option<Socket> {
    let limit = state.config.limits.header_timeout;
    let opening = async {
        match state.transport.tls.acceptor().filter(|_| settings.tls) {
            None => stream.peek(&mut [0]).await.map(|_| Socket::plain(stream)),
            Some(acceptor) => acceptor.accept(Tcp::new(stream)).await.map(Socket::encrypted),
        }
    };
    match tokio::time::timeout(limit, opening).await {
        Ok(Ok(socket)) => return Some(socket),
        Ok(Err(error)) => debug!(%error, "gateway handshake failed"),
        Err(_) => debug!("gateway handshake timed out"),
    }
    if settings.tls {
        state.routing.metrics.no_tls();
    }
    None
}

async fn answer(processor: Processor, request: Request<Incoming>) -> http::Response<tonic::body::Body> {
    if request.uri().path() != PATH {
        return Status::unimplemented("only the external processor is served here").into_http();
    }
    let most = processor
        .0
        .state
        .routing
        .live()
        .limits
        .max_body_bytes
        .get()
        .saturating_add(2 * MOST_BESIDE_BODIES);
    let request = request.map(|body| CountedBody::new(body, processor.0.state.request_reservation()));
    tonic::server::Grpc::new(BoundedCodec)
        .max_decoding_message_size(most)
        .streaming(processor, request)
        .await
}

struct Processor(Arc<Proxy>, Arc<OpenRequest>);

impl tower_service::Service<tonic::Request<Streaming<SizedMessage>>> for Processor {
    type Response = tonic::Response<ExchangeStream>;
    type Error = Status;
    type Future = std::future::Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Streaming<SizedMessage>>) -> Self::Future {
        let conversation = ExchangeStream::new(&self.0, Arc::clone(&self.1), request.into_inner());
        std::future::ready(Ok(tonic::Response::new(conversation)))
    }
}

/// The response stream of one request. Dropping it ends the exchange.
struct ExchangeStream {
    /// Task of the exchange, until its result was read.
    talking: JoinSet<Result<(), Status>>,
    told: mpsc::Receiver<Going>,
    _open: Open,
    _under_way: Arc<OpenRequest>,
}

impl ExchangeStream {
    fn new(proxy: &Arc<Proxy>, under_way: Arc<OpenRequest>, incoming: Streaming<SizedMessage>) -> Self {
        let (out, told) = mpsc::channel(WAITING);
        let mut talking = JoinSet::new();
        talking.spawn(talk(Arc::clone(proxy), Inbox::new(&proxy.state, incoming), out));
        Self {
            talking,
            told,
            _open: proxy.state.routing.metrics.picker_opened(),
            _under_way: under_way,
        }
    }
}

impl Stream for ExchangeStream {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some((told, _)) = ready!(this.told.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(told)));
        }
        // The exchange is over, and all of its messages are sent.
        Poll::Ready(match ready!(this.talking.poll_join_next(cx)) {
            Some(Ok(Ok(()))) | None => None,
            Some(Ok(Err(status))) => Some(Err(status)),
            Some(Err(error)) => {
                error!(%error, "the exchange with a gateway failed");
                Some(Err(Status::internal("the request failed; the log says why")))
            }
        })
    }
}
