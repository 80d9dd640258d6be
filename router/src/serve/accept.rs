//! Accepts connections on the data port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::warn;

use super::Phase;
use super::connection::Connector;
use super::connections::{ConnectionPermit, Connections};
use super::progress::Progress;
use crate::app::App;
use crate::path::arrival;
use crate::supervise::{Task, until_done};

/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the phase changes. Each connection holds a receiver of the phase while it is served.
pub(super) async fn run(app: Arc<App>, listener: TcpListener, phase: watch::Receiver<Phase>) {
    let port = Arc::new((
        listener,
        Connections::new(app.config.limits.max_connections.get()),
    ));
    let connector = Connector::new(&app);
    let accepting = {
        let app = Arc::clone(&app);
        move || {
            accept(
                Arc::clone(&app),
                Arc::clone(&port),
                connector.clone(),
                phase.clone(),
            )
        }
    };
    until_done(app, Task::only("data_port"), accepting).await;
}

async fn accept(
    app: Arc<App>,
    port: Arc<(TcpListener, Arc<Connections>)>,
    connector: Connector,
    mut phase: watch::Receiver<Phase>,
) {
    let (listener, connections) = &*port;
    let phases = phase.clone();
    let begin = |(stream, address): (TcpStream, SocketAddr), (place, progress)| {
        let peer = arrival::peer(&app, address, app.tls.acceptor().is_some());
        tokio::spawn(
            connector
                .clone()
                .serve((stream, peer), (place, progress), phases.clone()),
        );
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
            accepted = listener.accept() => accepted,
        };
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // At the connection limit, this client waits here and later ones in the listen backlog.
        let progress = Arc::new(Progress::default());
        let place = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {
                if let Some(place) = connections.try_place(client.1.ip(), &progress) {
                    begin(client, (place, progress));
                }
                break;
            }
            place = connections.place(client.1.ip(), &progress) => place,
        };
        begin(client, (place, progress));
    }
    // Clients in the backlog are connected already and would be reset with the socket, so they are accepted too. If
    // another process shares the backlog, it would serve them as well.
    while let Some(Ok(client)) = listener.accept().now_or_never() {
        let progress = Arc::new(Progress::default());
        let Some(place): Option<ConnectionPermit> = connections.try_place(client.1.ip(), &progress) else {
            break;
        };
        begin(client, (place, progress));
    }
}
