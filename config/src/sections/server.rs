//! The data port: `[server]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// The data port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerSection {
    /// Address and port that clients connect to. `0.0.0.0:8080` serves every interface.
    pub listen: String,
    /// A local socket, such as `/run/tailroute/handover`, on which this process gives its ports to the next one: a router
    /// that is started with the same name takes them over, serves, and lets this one drain and end. Empty: none.
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

/// The data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address that clients connect to.
    pub listen: SocketAddr,
    /// Local socket on which the ports are handed over.
    pub handover: Option<PathBuf>,
}

pub(super) fn server(written: ServerSection, checker: &mut Checker<'_>) -> Server {
    Server {
        listen: checker.address("server.listen", &written.listen),
        handover: (!written.handover.is_empty()).then(|| written.handover.into()),
    }
}
