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
use server::{ConnectionServer, Phase};
use state::supervise::{Task, until_done};

/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the router drains. Each connection holds a receiver of the phase while it is served.
pub async fn run(proxy: Arc<Proxy>, listener: TcpListener, phase: watch::Receiver<Phase>) {
    let port = Arc::new(DataPort {
        listener,
        connections: Connections::new(proxy.state.config.limits.max_connections.get()),
    });
    let connector = ConnectionServer::new(&proxy.state);
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

struct DataPort {
    listener: TcpListener,
    connections: Arc<Connections>,
}

async fn accept(
    proxy: Arc<Proxy>,
    port: Arc<DataPort>,
    connector: ConnectionServer,
    mut phase: watch::Receiver<Phase>,
) {
    let DataPort {
        listener,
        connections,
    } = &*port;
    let phases = phase.clone();
    let begin = |stream: TcpStream, address: SocketAddr, permit: ConnectionPermit| {
        let peer = arrival::peer(
            &proxy.state.config.http,
            address,
            proxy.state.transport.tls.acceptor().is_some(),
        );
        let proxy = Arc::clone(&proxy);
        let handle = move |request| path::handle(Arc::clone(&proxy), &peer, request);
        tokio::spawn(connector.clone().serve(stream, handle, permit, phases.clone()));
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // At the connection limit, this client waits here and later ones in the listen backlog.
        let permit = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {
                if let Some(permit) = connections.try_acquire(address.ip()) {
                    begin(stream, address, permit);
                }
                break;
            }
            permit = connections.acquire(address.ip()) => permit,
        };
        begin(stream, address, permit);
    }
    // Clients in the backlog are connected already and would be reset with the socket, so they are accepted too.
    while let Some(Ok((stream, address))) = listener.accept().now_or_never() {
        let Some(permit) = connections.try_acquire(address.ip()) else {
            break;
        };
        begin(stream, address, permit);
    }
}
