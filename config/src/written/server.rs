//! The data port: `[server]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The data port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address and port for clients. `0.0.0.0:8080` serves every interface.
    pub listen: String,
    /// Local socket, such as `/run/tailroute/handover`, through which this process hands its ports over to the next
    /// one: a router that is started with the same path takes them over and serves, and this one drains and exits.
    /// Empty: none.
    pub handover: String,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            handover: String::new(),
        }
    }
}
