//! Where the listening sockets come from: this process, the service manager, or the process before this one.
//!
//! A socket that two processes share has one queue of connections, which nobody closes: so a new process that takes over
//! the listening sockets of the old one loses none of them. Two sockets on one port (`SO_REUSEPORT`) would have a queue
//! each, and the old one's is reset when it is closed.
//!
//! | from | how |
//! |---|---|
//! | the process before | `server.handover` names a local socket; see [`super::handover`] |
//! | the service manager | systemd's `LISTEN_FDS`: the data port first, then the admin port, then the endpoint picker's |
//! | this process | bound as configured |

use std::net::SocketAddr;

use anyhow::Context as _;
use listenfd::ListenFd;
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::handover::{self, Predecessor};

/// The listening sockets.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) data: TcpListener,
    pub(super) admin: TcpListener,
    /// Of the endpoint picker, if there is to be one.
    pub(super) picker: Option<TcpListener>,
    /// Who had them before, and serves until it is told that this process does.
    pub(super) predecessor: Option<Predecessor>,
}

/// Takes over, or opens, the sockets that are configured.
pub(super) async fn open(config: &config::Config) -> anyhow::Result<Listeners> {
    let mut given = Given::default();
    let mut predecessor = None;
    if let Some(path) = &config.server.handover {
        match handover::ask(path).await {
            Ok(Some((sockets, before))) => {
                info!("taking over from the process before this one");
                given.0.extend(sockets);
                predecessor = Some(before);
            }
            Ok(None) => {}
            Err(error) => warn!(%error, path = %path.display(), "cannot take over; opening ports of its own"),
        }
    }
    let mut inherited = ListenFd::from_env();
    for at in 0..inherited.len() {
        if let Ok(Some(socket)) = inherited.take_tcp_listener(at) {
            given.0.push(socket);
        }
    }
    let (server, admin) = (config.server.listen, config.admin.listen);
    let data = given.take_or_bind(server, "server.listen", 0).await?;
    let admin = given.take_or_bind(admin, "admin.listen", 0).await?;
    let picker = match &config.endpoint_picker {
        Some(picker) => Some(
            given
                .take_or_bind(picker.listen, "endpoint_picker.listen", 0)
                .await?,
        ),
        None => None,
    };
    Ok(Listeners {
        data,
        admin,
        picker,
        predecessor,
    })
}

/// Sockets that somebody else has opened, in the order data, admin, endpoint picker.
#[derive(Debug, Default)]
struct Given(Vec<std::net::TcpListener>);

impl Given {
    /// The one among them with this address, or the next one if any port will do; else one of this process's own.
    async fn take_or_bind(
        &mut self,
        address: SocketAddr,
        key: &str,
        any_port: u16,
    ) -> anyhow::Result<TcpListener> {
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
        TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} ({key})"))
    }
}
