//! The admin port's connections: a bound on their number and a time for heads, so that whoever can reach the port cannot
//! use up the router's descriptors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower_service::Service as _;
use tracing::{debug, warn};

use super::call::From;
use crate::app::App;

/// Connections at once.
const MAX_CONNECTIONS: usize = 256;
/// For a request's head to be there.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Rest after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the admin port for as long as the task lives; its connections end with it.
pub async fn run(app: Arc<App>, listener: TcpListener) {
    let router = super::router(&app);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                connections.spawn(connection(router.clone(), stream, from, place));
            }
            Err(error) => {
                warn!(%error, "the admin port cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(router: axum::Router, stream: TcpStream, from: SocketAddr, place: OwnedSemaphorePermit) {
    // Small answers to people who wait for them.
    let _ = stream.set_nodelay(true);
    let router = router.layer(Extension(From(from)));
    let service = service_fn(move |request: http::Request<Incoming>| {
        let request: Request = request.map(axum::body::Body::new);
        router.clone().call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, %from, "a connection of the admin port broke");
    }
    drop(place);
}
