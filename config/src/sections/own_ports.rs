//! Check that no worker is one of the router's own ports, to which each of its requests would return.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Uri;

use super::base_url::base_url;
use super::checker::Checker;

/// Reports each worker whose url is the address of one of these ports. A url that leads to the router in another way is
/// found by the first probe.
pub(crate) fn check(urls: &[String], ports: &[(&str, Option<SocketAddr>)], checker: &mut Checker<'_>) {
    for (at, written) in urls.iter().enumerate() {
        let Ok(url) = base_url(written) else { continue };
        let own = ports
            .iter()
            .find(|(_, listen)| listen.is_some_and(|listen| leads_to(&url, listen)));
        if let Some((name, _)) = own {
            let what =
                format!("{written:?} is this router's own {name} port; expected the address of an engine");
            checker.report(&format!("workers[{at}].url"), what, None);
        }
    }
}

fn leads_to(url: &Uri, listen: SocketAddr) -> bool {
    let default = if url.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    if url.port_u16().unwrap_or(default) != listen.port() {
        return false;
    }
    let own = listen.ip().to_canonical();
    let is_own = |address: IpAddr| {
        let address = address.to_canonical();
        // The unspecified address connects to this machine, and listens on each of its addresses.
        address == own
            || (address.is_unspecified() && own.is_loopback())
            || (own.is_unspecified() && address.is_loopback())
            || (own.is_unspecified() && address.is_unspecified())
    };
    let host = url.host().unwrap_or_default();
    if host.eq_ignore_ascii_case("localhost") {
        return is_own(Ipv4Addr::LOCALHOST.into()) || is_own(Ipv6Addr::LOCALHOST.into());
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().is_ok_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_a_port_of_the_same_machine_only() {
        for (url, listen, expected) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://127.0.0.1:8080/base", "127.0.0.1:8080", true),
            ("https://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://localhost:8080", "127.0.0.1:8080", true),
            ("http://LocalHost:8080", "[::1]:8080", true),
            ("http://127.0.0.1:8080", "0.0.0.0:8080", true),
            ("http://127.0.0.1:8080", "[::]:8080", true),
            ("http://[::1]:8080", "[::]:8080", true),
            ("http://[::ffff:127.0.0.1]:8080", "127.0.0.1:8080", true),
            ("http://0.0.0.0:8080", "127.0.0.1:8080", true),
            ("http://0.0.0.0:8080", "[::]:8080", true),
            ("http://10.0.0.1", "10.0.0.1:80", true),
            ("https://10.0.0.1", "10.0.0.1:443", true),
            ("http://127.0.0.1:8081", "127.0.0.1:8080", false),
            ("http://127.0.0.2:8080", "127.0.0.1:8080", false),
            ("http://10.0.0.2:8080", "0.0.0.0:8080", false),
            ("http://10.0.0.2:8080", "10.0.0.1:8080", false),
            ("http://localhost:8080", "10.0.0.1:8080", false),
            ("http://engine:8080", "127.0.0.1:8080", false),
        ] {
            let url = base_url(url).unwrap();
            assert_eq!(
                leads_to(&url, listen.parse().unwrap()),
                expected,
                "{url} {listen}"
            );
        }
    }
}
