//! The endpoint picker's port: `[endpoint_picker]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointPicker {
    /// Address and port for gateways, by gRPC, as in `127.0.0.1:9002`. Each worker's url must then have an IP address.
    /// Empty: disabled.
    pub listen: String,
    /// Whether the port uses TLS, with the certificate of `[tls]`; its clients need a certificate if
    /// `tls.client_ca_file` is set.
    pub tls: bool,
    /// Endpoints named after the best one, for a gateway that retries. 0 for one that accepts a single endpoint, as an
    /// `ORIGINAL_DST` cluster does.
    #[schemars(range(max = 15))]
    pub fallbacks: u32,
    /// Largest number of connections from gateways; a further one replaces one without a request, or waits.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_connections: u32,
    /// Largest number of concurrent requests on each connection, each for the duration of its response; more wait in
    /// the gateway.
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
