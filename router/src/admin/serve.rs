//! The admin port's connections: a bound on their number, a time for heads, and one in which something of an answer has to
//! be read, so that whoever can reach the port can neither use up the router's descriptors nor hold the port. When all
//! places are taken a few are left for probes: an orchestrator must not take a router for dead because others do not let go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::IntoResponse as _;
use axum::{Extension, Router};
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
use super::problem::Problem;
use super::status;
use crate::app::App;
use crate::serve::client_io::ClientIo;
use crate::serve::socket::Socket;

/// Rest after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// At once.
    connections: usize,
    /// For a request's head to be there.
    head: Duration,
    /// In which something of what waits to be written has to be taken.
    patience: Duration,
}

/// Of whoever comes.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    head: Duration::from_secs(10),
    patience: Duration::from_secs(30),
};
/// Of probes, when there is no other place.
const PROBES: Bounds = Bounds {
    connections: 16,
    head: Duration::from_secs(1),
    patience: Duration::from_secs(1),
};

/// Serves the admin port for as long as the task lives; its connections end with it.
pub async fn run(app: Arc<App>, listener: TcpListener) {
    let probes = status::probes(&app).fallback(|| async {
        Problem::unavailable("all places for connections are taken; only /livez and /readyz are answered now")
            .into_response()
    });
    accept(
        listener,
        Places::new(super::router(&app), BOUNDS),
        Places::new(probes, PROBES),
    )
    .await;
}

/// What is answered, and how many connections may ask.
struct Places {
    router: Router,
    bounds: Bounds,
    free: Arc<Semaphore>,
}

impl Places {
    fn new(router: Router, bounds: Bounds) -> Self {
        Self {
            router,
            bounds,
            free: Arc::new(Semaphore::new(bounds.connections)),
        }
    }
}

async fn accept(listener: TcpListener, all: Places, spare: Places) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "the admin port cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let (places, place) = tokio::select! {
            biased;
            place = Arc::clone(&all.free).acquire_owned() => (&all, place),
            place = Arc::clone(&spare.free).acquire_owned() => (&spare, place),
        };
        let Ok(place) = place else { return };
        connections.spawn(connection(
            places.router.clone(),
            places.bounds,
            (stream, from),
            place,
        ));
    }
}

async fn connection(
    router: Router,
    bounds: Bounds,
    (stream, from): (TcpStream, SocketAddr),
    place: OwnedSemaphorePermit,
) {
    // Small answers to people who wait for them.
    let _ = stream.set_nodelay(true);
    let router = router.layer(Extension(From(from)));
    let service = service_fn(move |request: http::Request<Incoming>| {
        let request: Request = request.map(axum::body::Body::new);
        router.clone().call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .serve_connection(
            TokioIo::new(ClientIo::of_other_port(
                Socket::plain(stream),
                place,
                bounds.patience,
            )),
            service,
        )
        .await;
    if let Err(error) = served {
        debug!(%error, %from, "a connection of the admin port broke");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// For a machine that does much else.
    const LONG: Duration = Duration::from_secs(60);

    async fn ask(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        stream
    }

    /// Reads until this was said.
    async fn hears(mut stream: TcpStream, text: &str) {
        let mut read = Vec::new();
        let heard = async {
            while !String::from_utf8_lossy(&read).contains(text) {
                let count = stream.read_buf(&mut read).await.unwrap();
                assert!(count > 0, "{}", String::from_utf8_lossy(&read));
            }
        };
        tokio::time::timeout(LONG, heard).await.unwrap();
    }

    /// A port with one place and one for probes, whose first client has begun to get an answer that it does not read.
    async fn held(patience: Duration) -> (SocketAddr, Arc<Semaphore>, TcpStream, JoinSet<()>) {
        let big = Router::new().route("/", get(|| async { vec![b'x'; 64 << 20] }));
        let probes = Router::new().route("/", get(|| async { "alive" }));
        let bounds = |patience| Bounds {
            connections: 1,
            head: LONG,
            patience,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let all = Places::new(big, bounds(patience));
        let free = Arc::clone(&all.free);
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, all, Places::new(probes, bounds(LONG))));
        let idle = ask(address).await;
        idle.readable().await.unwrap();
        (address, free, idle, serving)
    }

    #[tokio::test]
    async fn who_does_not_read_leaves_room_for_probes() {
        let (address, free, _idle, _serving) = held(LONG).await;
        assert_eq!(free.available_permits(), 0);
        hears(ask(address).await, "alive").await;
    }

    #[tokio::test]
    async fn who_does_not_read_loses_its_place() {
        let (_, free, _idle, _serving) = held(Duration::from_millis(100)).await;
        // It comes back without anybody's doing.
        drop(tokio::time::timeout(LONG, free.acquire()).await.unwrap().unwrap());
    }
}
