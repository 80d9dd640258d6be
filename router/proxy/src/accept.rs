//! Accepts connections on the data port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::warn;

use crate::Proxy;
use crate::path::{self, arrival};
use server::connections::{ConnectionPermit, Connections};
use server::progress::Progress;
use server::{Connector, Phase};
use state::supervise::{Task, until_done};

/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the phase changes. Each connection holds a receiver of the phase while it is served.
pub async fn run(proxy: Arc<Proxy>, listener: TcpListener, phase: watch::Receiver<Phase>) {
    let port = Arc::new((
        listener,
        Connections::new(proxy.state.config.limits.max_connections.get()),
    ));
    let connector = Connector::new(&proxy.state);
    let accepting = {
        let proxy = Arc::clone(&proxy);
        move || {
            accept(
                Arc::clone(&proxy),
                Arc::clone(&port),
                connector.clone(),
                phase.clone(),
            )
        }
    };
    until_done(Arc::clone(&proxy.state), Task::only("data_port"), accepting).await;
}

async fn accept(
    proxy: Arc<Proxy>,
    port: Arc<(TcpListener, Arc<Connections>)>,
    connector: Connector,
    mut phase: watch::Receiver<Phase>,
) {
    let (listener, connections) = &*port;
    let phases = phase.clone();
    let begin = |(stream, address): (TcpStream, SocketAddr), (place, progress)| {
        let peer = arrival::peer(&proxy, address, proxy.state.tls.acceptor().is_some());
        let proxy = Arc::clone(&proxy);
        let handle = move |request| path::handle(Arc::clone(&proxy), Arc::clone(&peer), request);
        tokio::spawn(
            connector
                .clone()
                .serve(stream, handle, (place, progress), phases.clone()),
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
