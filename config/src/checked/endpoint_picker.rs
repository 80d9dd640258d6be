//! The endpoint picker's port.

use std::net::SocketAddr;

use super::base_url::{address_of, base_url};
use super::checker::Checker;
use super::{Admin, Server, Tls};
use crate::written;

/// Settings of the endpoint picker's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPicker {
    /// Address of the port.
    pub listen: SocketAddr,
    /// Whether it uses TLS, with the data port's certificate.
    pub tls: bool,
    /// Endpoints named after the best one.
    pub fallbacks: usize,
    /// Largest number of connections.
    pub max_connections: usize,
    /// Largest number of concurrent requests per connection.
    pub max_streams: u32,
}

pub(super) fn endpoint_picker(
    written: &written::EndpointPicker,
    (server, admin): (&Server, &Admin),
    tls: &Tls,
    urls: &[String],
    checker: &mut Checker<'_>,
) -> Option<EndpointPicker> {
    if written.listen.is_empty() {
        return None;
    }
    let path = "endpoint_picker.listen";
    let listen = checker.address(path, &written.listen);
    for (other, name) in [(server.listen, "data"), (admin.listen, "admin")] {
        if listen == other && listen.port() != 0 {
            let what = format!("{listen} is the {name} port as well; expected a port of its own");
            checker.report(path, what, None);
        }
    }
    if written.tls && tls.server.is_none() {
        let hint = "set tls.cert_file and tls.key_file, or leave the port unencrypted".to_owned();
        let what = "there is no certificate".to_owned();
        checker.report("endpoint_picker.tls", what, Some(hint));
    }
    for (at, url) in urls.iter().enumerate() {
        if base_url(url).is_ok_and(|url| address_of(&url).is_none()) {
            let what =
                format!("gateways are told addresses, expected http://IP:PORT without a path, found {url:?}");
            let hint = "have [discovery] find the worker's address, or leave endpoint_picker.listen empty";
            checker.report(&format!("workers[{at}].url"), what, Some(hint.to_owned()));
        }
    }
    Some(EndpointPicker {
        listen,
        tls: written.tls,
        fallbacks: written.fallbacks as usize,
        max_connections: written.max_connections as usize,
        max_streams: written.max_streams,
    })
}
