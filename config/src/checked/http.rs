//! HTTP between clients and workers: forwarded headers and extra paths.

use std::net::IpAddr;
use std::time::Duration;

use super::checker::Checker;
use crate::written;

/// Settings of HTTP between clients and workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Forwarded information about clients.
    pub forwarded: written::Forwarded,
    /// Proxies whose forwarded information is trusted.
    pub trusted_proxies: Vec<Network>,
    /// Additional paths that are forwarded; each begins with `/` and does not end with one.
    pub extra_paths: Vec<String>,
    /// Whether clients may set fields that control an engine's internals.
    pub transfer_fields: bool,
    /// Longest silence of a WebSocket.
    pub tunnel_idle_timeout: Duration,
}

/// A network of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Length of the prefix in bits, at most that of an address.
    bits: u8,
}

impl Network {
    /// Parses an address (`10.0.0.7`) or a network (`10.0.0.0/8`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Self { address, bits })
    }

    /// Returns whether the network contains this address. An IPv4 address mapped to IPv6 is treated as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let of = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let ((ours, size), (theirs, other)) = (of(self.address), of(address));
        let differ = (ours ^ theirs).leading_zeros();
        size == other && differ >= u32::from(self.bits)
    }
}

pub(super) fn http(written: written::Http, checker: &mut Checker<'_>) -> Http {
    let mut trusted_proxies = Vec::with_capacity(written.trusted_proxies.len());
    for (at, text) in written.trusted_proxies.iter().enumerate() {
        match Network::parse(text) {
            Some(network) => trusted_proxies.push(network),
            None => checker.report(
                &format!("http.trusted_proxies[{at}]"),
                format!("expected an address or a network such as 10.0.0.0/8, found {text:?}"),
                None,
            ),
        }
    }
    for (at, path) in written.extra_paths.iter().enumerate() {
        let plain = path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"%?#\\".contains(&byte));
        if !plain || !path.starts_with('/') || path.ends_with('/') || path.contains("//") {
            checker.report(
                &format!("http.extra_paths[{at}]"),
                format!("expected a path such as /engine/info, found {path:?}"),
                None,
            );
        }
    }
    Http {
        forwarded: written.forwarded,
        trusted_proxies,
        extra_paths: written.extra_paths,
        transfer_fields: written.transfer_fields,
        tunnel_idle_timeout: checker.seconds("http.tunnel_idle_timeout_s", written.tunnel_idle_timeout_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_the_addresses_that_begin_as_it_does() {
        for (network, address, held) in [
            ("10.0.0.0/8", "10.200.3.4", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("10.0.0.7", "::ffff:10.0.0.7", true),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdab::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "::1", true),
            ("::/0", "1.2.3.4", false),
            ("::1", "::1", true),
        ] {
            let network = Network::parse(network).unwrap();
            assert_eq!(
                network.contains(address.parse().unwrap()),
                held,
                "{address} in {network:?}"
            );
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "host",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
