//! Clients from other machines need an API key.

use std::net::SocketAddr;

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;
use super::untold;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let configuration = &facts.configuration;
    let (Some(listen), Some(required)) = (&configuration.listen, configuration.keys_required) else {
        return untold();
    };
    let is_local = listen
        .parse()
        .is_ok_and(|address: SocketAddr| address.ip().is_loopback());
    match (required, is_local) {
        (true, _) => CheckVerdict::ok("clients need an API key"),
        (false, true) => CheckVerdict::ok(format!("the data port is local ({listen})")),
        (false, false) => CheckVerdict::note(
            format!("clients need no API key on {listen}"),
            "unless a gateway or the network admits only your clients: admission.keys_file (tailroute key new NAME)",
        ),
    }
}
