//! Accepts connections while the engine is alive and cuts them when it dies.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::rank::Ranks;

const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

const REBIND_PAUSE: Duration = Duration::from_millis(5);

const BACKLOG: u32 = 1024;

pub(crate) async fn serve(ranks: Ranks, listener: TcpListener, addr: SocketAddr) {
    // All ranks die and restart together.
    let Some(mut alive) = ranks.first().map(|rank| rank.alive.subscribe()) else {
        return;
    };
    let mut listener = Some(listener);
    let mut kept = None;
    // Dropping this set, on death or shutdown, cuts every connection.
    let mut connections = JoinSet::new();
    loop {
        if !*alive.borrow_and_update() {
            listener = None;
            connections.abort_all();
            while connections.join_next().await.is_some() {}
            kept = keep(addr).ok();
            if alive.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(open) = &listener else {
            let socket = kept.take().or_else(|| keep(addr).ok());
            listener = socket.and_then(|socket| socket.listen(BACKLOG).ok());
            if listener.is_none() {
                tokio::time::sleep(REBIND_PAUSE).await;
            }
            continue;
        };
        tokio::select! {
            accepted = open.accept() => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(connection(Arc::clone(&ranks), socket));
                }
                // Usually out of file descriptors, which other connections will free.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(REBIND_PAUSE).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            changed = alive.changed() => if changed.is_err() { return },
        }
    }
}

/// Binds the port without listening: connections to a dead engine are refused, and no other server gets its port.
fn keep(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

async fn connection(ranks: Ranks, socket: TcpStream) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    let service = service_fn(move |request| super::handle(Arc::clone(&ranks), request));
    if let Err(error) = builder.serve_connection(TokioIo::new(socket), service).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
