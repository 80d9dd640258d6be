//! The port for gateways: `[endpoint_picker]`.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin::Admin;
use super::base_url::{address_of, base_url};
use super::checker::Checker;
use super::server::Server;
use super::tls::Tls;

/// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(
    rename = "EndpointPicker",
    bound = "Self: Default, Address: Serialize + JsonSchema"
)]
pub struct EndpointPicker<Address = SocketAddr> {
    /// Address and port for gateways, by gRPC, as in `127.0.0.1:9002`. Each worker's url must then have an IP address.
    /// Empty: disabled.
    pub listen: Address,
    /// Whether the port uses TLS, with the certificate of `[tls]`; its clients need a certificate if
    /// `tls.client_ca_file` is set.
    pub tls: bool,
    /// Number of endpoints named after the best one, for a gateway that retries. 0 for one that accepts a single
    /// endpoint, as an `ORIGINAL_DST` cluster does.
    #[schemars(with = "u32", range(max = 15))]
    pub fallbacks: usize,
    /// Largest number of connections from gateways; a further one replaces one without a request, or waits.
    #[schemars(with = "u32", range(min = 1, max = 65_536))]
    pub max_connections: usize,
    /// Largest number of concurrent requests on each connection, each for the duration of its response; more wait in
    /// the gateway.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_streams: u32,
}

impl Default for EndpointPicker<String> {
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

impl EndpointPicker<String> {
    /// Checks the section; `None` if the port is disabled. `urls` are those of the workers.
    pub(crate) fn checked(
        self,
        server: &Server,
        admin: &Admin,
        tls: &Tls,
        urls: &[String],
        checker: &mut Checker<'_>,
    ) -> Option<EndpointPicker> {
        if self.listen.is_empty() {
            return None;
        }
        let path = "endpoint_picker.listen";
        let listen = checker.address(path, &self.listen);
        for (other, name) in [(server.listen, "data"), (admin.listen, "admin")] {
            if listen == other && listen.port() != 0 {
                let what = format!("{listen} is also the {name} port; expected a separate port");
                checker.report(path, what, None);
            }
        }
        if self.tls && tls.server.is_none() {
            let hint = "set tls.cert_file and tls.key_file, or leave the port unencrypted".to_owned();
            let what = "there is no certificate".to_owned();
            checker.report("endpoint_picker.tls", what, Some(hint));
        }
        for (at, url) in urls.iter().enumerate() {
            if base_url(url).is_ok_and(|url| address_of(&url).is_none()) {
                let what = format!(
                    "gateways receive addresses; expected http://IP:PORT without a path, found {url:?}"
                );
                let hint =
                    "have [discovery] find the worker's address, or leave endpoint_picker.listen empty";
                checker.report(&format!("workers[{at}].url"), what, Some(hint.to_owned()));
            }
        }
        Some(EndpointPicker {
            listen,
            tls: self.tls,
            fallbacks: self.fallbacks,
            max_connections: self.max_connections,
            max_streams: self.max_streams,
        })
    }
}
