//! The data port: `[server]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::AsPath;
use super::checker::Checker;

/// Settings of the data port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server", bound = "Self: Default, Address: Serialize + JsonSchema")]
#[serde(default, deny_unknown_fields)]
pub struct Server<Address = SocketAddr> {
    /// Address and port for clients. `0.0.0.0:8080` serves every interface.
    pub listen: Address,
    /// Local socket, such as `/run/tailroute/handover`, through which this process hands its ports over to the next
    /// one: a router that is started with the same path takes them over and serves, and this one drains and exits.
    /// Empty: none.
    #[serde(with = "AsPath")]
    pub handover: Option<PathBuf>,
}

impl Default for Server<String> {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            handover: None,
        }
    }
}

impl Server<String> {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Server {
        Server {
            listen: checker.address("server.listen", &self.listen),
            handover: self.handover,
        }
    }
}
