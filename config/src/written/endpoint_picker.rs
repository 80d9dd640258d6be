//! The endpoint picker's port: `[endpoint_picker]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A port where Envoy-based gateways ask which worker a request should go to (`ext_proc`, docs/endpoint-picker.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointPicker {
    /// Address and port that gateways ask at, by gRPC, as in `127.0.0.1:9002`. Each worker's url then has to name an IP
    /// address. Empty: none.
    pub listen: String,
    /// Whether the port is encrypted, with the certificate of `[tls]`; its clients show a certificate if `tls.client_ca_file`
    /// asks for one.
    pub tls: bool,
    /// Endpoints that are named after the best one, for a gateway that tries again. 0 for one that takes a single endpoint,
    /// as an `ORIGINAL_DST` cluster does.
    #[schemars(range(max = 15))]
    pub fallbacks: u32,
    /// Connections of gateways at the same time; beyond them a new one takes the place of one without a request, or waits.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_connections: u32,
    /// Requests at the same time on each of these connections, each for as long as its answer takes; more wait in the
    /// gateway.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_streams: u32,
}

impl Default for EndpointPicker {
    fn default() -> Self {
        Self {
            listen: String::new(),
            tls: false,
            fallbacks: 2,
            max_connections: 256,
            max_streams: 4096,
        }
    }
}
