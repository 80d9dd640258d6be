//! Opens the listening sockets, or takes them over from the service manager or the predecessor process. The predecessor
//! process passes them through [`super::handover`], the service manager as systemd's `LISTEN_FDS`. docs/operating.md
//! explains why `SO_REUSEPORT` is not used.

use std::io;
use std::net::SocketAddr;

use anyhow::Context as _;
use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket};
use tracing::{info, warn};

use super::handover::{self, Predecessor};

/// Size of the listen backlog; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) data: TcpListener,
    pub(super) admin: TcpListener,
    pub(super) picker: Option<TcpListener>,
    /// The predecessor process, which serves until it is asked to drain.
    pub(super) predecessor: Option<Predecessor>,
}

pub(super) async fn open(config: &config::Config) -> anyhow::Result<Listeners> {
    let mut given = InheritedSockets::default();
    let mut predecessor = None;
    if let Some(path) = &config.server.handover {
        match handover::ask(path).await {
            Ok(Some((sockets, before))) => {
                info!("taking over from the predecessor process");
                given.0.extend(sockets);
                predecessor = Some(before);
            }
            Ok(None) => {}
            Err(error) => warn!(%error, path = %path.display(), "cannot take over; opening new sockets"),
        }
    }
    let mut inherited = ListenFd::from_env();
    for at in 0..inherited.len() {
        if let Ok(Some(socket)) = inherited.take_tcp_listener(at) {
            given.0.push(socket);
        }
    }
    let (server, admin) = (config.server.listen, config.admin.listen);
    let data = given.take_or_bind(server, "server.listen", 0)?;
    let admin = given.take_or_bind(admin, "admin.listen", 0)?;
    let picker = match &config.endpoint_picker {
        Some(picker) => Some(given.take_or_bind(picker.listen, "endpoint_picker.listen", 0)?),
        None => None,
    };
    Ok(Listeners {
        data,
        admin,
        picker,
        predecessor,
    })
}

/// Sockets opened by another process, in the order data, admin, endpoint picker.
#[derive(Debug, Default)]
struct InheritedSockets(Vec<std::net::TcpListener>);

impl InheritedSockets {
    /// Takes the given socket with this address, or the next one if any port will do; otherwise binds a new one.
    fn take_or_bind(&mut self, address: SocketAddr, key: &str, any_port: u16) -> anyhow::Result<TcpListener> {
        let fits = |socket: &std::net::TcpListener| {
            let bound = socket.local_addr().ok();
            bound.is_some_and(|bound| {
                bound == address || (address.port() == any_port && bound.ip() == address.ip())
            })
        };
        if let Some(at) = self.0.iter().position(fits) {
            let socket = self.0.remove(at);
            socket.set_nonblocking(true)?;
            return TcpListener::from_std(socket)
                .with_context(|| format!("cannot take over {address} ({key})"));
        }
        bind(address).with_context(|| format!("cannot listen on {address} ({key})"))
    }
}

/// Binds a listening socket. If its backlog overflowed, a client would wait a second or more until its kernel retries.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Allows binding while earlier connections on the port are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_burst_of_connections_waits_to_be_accepted() {
        const BURST: usize = 300;
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let most: usize = most.map_or(BURST, |most| most.trim().parse().unwrap());
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        for number in 0..BURST.min(most) {
            let connection = TcpStream::connect_timeout(&address, Duration::from_secs(5));
            held.push(connection.unwrap_or_else(|error| panic!("connection {number}: {error}")));
        }
    }
}
