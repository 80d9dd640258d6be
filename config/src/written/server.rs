//! The data port: `[server]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The data port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address and port that clients connect to. `0.0.0.0:8080` serves every interface.
    pub listen: String,
    /// A local socket, such as `/run/tailroute/handover`, on which this process gives its ports to the next one: a router
    /// that is started with the same name takes them over, serves, and lets this one drain and end. Empty: none.
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
