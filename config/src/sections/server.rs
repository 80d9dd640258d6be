//! The data port: `[server]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// Settings of the data port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerSection {
    /// Address and port for clients. `0.0.0.0:8080` serves every interface.
    pub listen: String,
    /// Local socket, such as `/run/tailroute/handover`, through which this process hands its ports over to the next
    /// one: a router that is started with the same path takes them over and serves, and this one drains and exits.
    /// Empty: none.
    pub handover: String,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            handover: String::new(),
        }
    }
}

/// Settings of the data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address and port for clients.
    pub listen: SocketAddr,
    /// Path of the local socket through which the ports are handed over to the next process, if enabled.
    pub handover: Option<PathBuf>,
}

pub(super) fn server(written: ServerSection, checker: &mut Checker<'_>) -> Server {
    Server {
        listen: checker.address("server.listen", &written.listen),
        handover: (!written.handover.is_empty()).then(|| written.handover.into()),
    }
}
