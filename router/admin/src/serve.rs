//! The admin port's connections. Probes are answered whatever other clients do.
//!
//! Connections are bounded, and an idle one is closed to make room for a new one ([`Connections`]). Requests in
//! progress are bounded by half that number; beyond it, everything but probes is refused at once. So some connections
//! can always make room for a probe, whatever clients do with the others. Reading a request's head and writing part of
//! a response have time limits. Connections and probes run on a thread of their own, so that load on the data port does
//! not delay probes. All other requests run on the router's runtime.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tower_service::Service as _;
use tracing::{debug, warn};

use self::pieces::GuardedBody;
use super::dispatch::From;
use super::problem::Problem;
use super::status;
use crate::Admin;
use server::client_io::ClientIo;
use server::connections::{ConnectionPermit, Connections};
use server::progress::Progress;
use server::socket::Socket;
use state::supervise::{Task, forever};

mod pieces;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Size of the read buffer for a head, and of the write buffer for a response.
const BUFFER: usize = 32 << 10;

#[derive(Clone, Copy, Debug)]
struct Bounds {
    connections: usize,
    /// Most requests in progress, probes excluded.
    requests: usize,
    /// Timeout of reading a request's head.
    head: Duration,
    /// Timeout of writing any part of a pending response.
    patience: Duration,
}

const BOUNDS: Bounds = Bounds {
    connections: 512,
    requests: 256,
    head: Duration::from_secs(10),
    patience: Duration::from_secs(30),
};

#[derive(Debug)]
struct Port {
    all: Router,
    /// The runtime for all requests but probes.
    main: Handle,
    /// The routes that are served at the limit of requests.
    probes: Router,
    bounds: Bounds,
    connections: Arc<Connections>,
    requests: Arc<Semaphore>,
}

/// The admin port. Dropping it stops the server.
#[derive(Debug)]
pub struct AdminPort(Arc<Notify>);

impl AdminPort {
    /// Starts the server; the current runtime handles all but probes. Fails if its thread or runtime cannot be created.
    pub fn start(admin: Arc<Admin>, listener: TcpListener) -> io::Result<Self> {
        let main = Handle::current();
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _within = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let serving = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = run(admin, listener, main) => {}
                    () = stopped.notified() => {}
                }
            });
        };
        thread::Builder::new().name("admin".to_owned()).spawn(serving)?;
        Ok(Self(stop))
    }

    /// Closes the port and its connections.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

impl Drop for AdminPort {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn run(admin: Arc<Admin>, listener: TcpListener, main: Handle) {
    let probes = status::probes(&admin).fallback(|| async {
        let what = "too many requests in flight; only /livez and /readyz are answered";
        Problem::unavailable(what).into_response()
    });
    let port = Arc::new(Port::new(super::router(&admin), main, probes, BOUNDS));
    let listener = Arc::new(listener);
    let accepting = move || accept(Arc::clone(&listener), Arc::clone(&port));
    forever(Arc::clone(&admin.state), Task::only("admin_port"), accepting).await;
}

async fn accept(listener: Arc<TcpListener>, port: Arc<Port>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept connections on the admin port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let place = port.connections.acquire(from.ip()).await;
        connections.spawn(connection(Arc::clone(&port), stream, from, place));
    }
}

async fn connection(port: Arc<Port>, stream: TcpStream, from: SocketAddr, place: ConnectionPermit) {
    // Responses are small and latency matters.
    let _ = stream.set_nodelay(true);
    let progress = Arc::clone(place.progress());
    let io = ClientIo::of_other_port(Socket::plain(stream), place, port.bounds.patience);
    let (head, asked) = (port.bounds.head, Arc::clone(&progress));
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(From(from));
        let (port, asked) = (Arc::clone(&port), Arc::clone(&asked));
        async move { Ok::<_, std::convert::Infallible>(port.answer(&asked, request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                debug!(%error, %from, "admin connection failed");
            }
        }
        () = progress.evicted() => debug!(%from, "closed an idle admin connection to make room"),
    }
}

impl Port {
    fn new(all: Router, main: Handle, probes: Router, bounds: Bounds) -> Self {
        Self {
            all,
            main,
            probes,
            bounds,
            connections: Connections::new(bounds.connections),
            requests: Arc::new(Semaphore::new(bounds.requests)),
        }
    }

    /// Handles a request, which is in progress until its whole response is handed to the connection.
    async fn answer(&self, connection: &Arc<Progress>, request: Request) -> Response {
        let under_way = connection.request_began();
        if matches!(request.uri().path(), "/livez" | "/readyz") {
            return respond(self.probes.clone(), request).await;
        }
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            let mut answer = respond(self.probes.clone(), request).await;
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            return answer;
        };
        let mut task = JoinSet::new();
        task.spawn_on(respond(self.all.clone(), request), &self.main);
        let answer = match task.join_next().await {
            Some(Ok(answer)) => answer,
            _ => Problem::internal("the request failed; the log says why").into_response(),
        };
        answer.map(|body| axum::body::Body::new(GuardedBody::new(body, (under_way, permit))))
    }
}

pub(super) async fn respond(mut router: Router, request: Request) -> Response {
    match router.call(request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

#[cfg(test)]
pub(super) mod tests;
