//! HTTP between clients and workers: forwarded headers and extra paths.

use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::AsSeconds;
use super::checker::Checker;

/// Settings of HTTP between clients and workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Http", bound = "Self: Default, Proxy: Serialize + JsonSchema")]
pub struct Http<Proxy = Network> {
    /// Client information that is forwarded to workers (`Forwarded`, `X-Forwarded-For`, `-Proto`, `-Host`).
    pub forwarded: Forwarded,
    /// Addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) of the proxies whose forwarded information is trusted.
    pub trusted_proxies: Vec<Proxy>,
    /// Additional paths to forward, with all paths below them. Any other unknown path outside `/v1/` is answered 404:
    /// engines have paths that empty caches and load weights.
    pub extra_paths: Vec<String>,
    /// Origins of the web pages whose scripts may use the API (`https://chat.example.com`); `*` allows all pages, and
    /// an empty list none. The router answers their preflights, without a key, and replaces workers' CORS headers.
    /// Pages of listed origins may also send credentials, such as the cookies of a proxy in front of the router.
    pub cors_origins: Vec<String>,
    /// Whether clients may set fields that control an engine's internals: where keys and values are fetched from, or
    /// which rank computes the request (`kv_transfer_params`, `bootstrap_host`, `disaggregated_params`,
    /// `data_parallel_rank` and similar, in bodies and headers). Otherwise such a request is answered 400. It can crash
    /// an engine, or have it connect to any host.
    pub transfer_fields: bool,
    /// Seconds that a WebSocket may be silent, in both directions, before it is closed.
    #[serde(rename = "tunnel_idle_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub tunnel_idle_timeout: Duration,
}

/// Client information that is forwarded to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forwarded {
    /// For trusted proxies, their information and address; for other clients, only what the router observes.
    #[default]
    Append,
    /// Only what the router observes; such headers of clients and proxies are removed.
    Replace,
    /// Nothing; such headers of clients and proxies are removed.
    Off,
}

impl Default for Http<String> {
    fn default() -> Self {
        Self {
            forwarded: Forwarded::Append,
            trusted_proxies: Vec::new(),
            extra_paths: Vec::new(),
            cors_origins: vec![ANY_ORIGIN.to_owned()],
            transfer_fields: false,
            tunnel_idle_timeout: Duration::from_secs(300),
        }
    }
}

/// Value of `cors_origins` that allows the pages of all origins.
pub const ANY_ORIGIN: &str = "*";

/// A network of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Length of the prefix in bits, at most that of an address.
    bits: u8,
}

impl Network {
    /// Parses an address (`10.0.0.7`) or a network (`10.0.0.0/8`).
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

impl Http<String> {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Http {
        let trusted_proxies = networks(&self.trusted_proxies, checker);
        check_paths(&self.extra_paths, checker);
        check_origins(&self.cors_origins, checker);
        Http {
            forwarded: self.forwarded,
            trusted_proxies,
            extra_paths: self.extra_paths,
            cors_origins: self.cors_origins,
            transfer_fields: self.transfer_fields,
            tunnel_idle_timeout: self.tunnel_idle_timeout,
        }
    }
}

fn networks(written: &[String], checker: &mut Checker<'_>) -> Vec<Network> {
    let mut networks = Vec::with_capacity(written.len());
    for (at, text) in written.iter().enumerate() {
        match Network::parse(text) {
            Some(network) => networks.push(network),
            None => checker.report(
                &format!("http.trusted_proxies[{at}]"),
                format!("expected an address or a network such as 10.0.0.0/8, found {text:?}"),
                None,
            ),
        }
    }
    networks
}

fn check_paths(paths: &[String], checker: &mut Checker<'_>) {
    for (at, path) in paths.iter().enumerate() {
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
}

fn check_origins(origins: &[String], checker: &mut Checker<'_>) {
    for (at, origin) in origins.iter().enumerate() {
        let field = format!("http.cors_origins[{at}]");
        if origin == ANY_ORIGIN {
            if origins.len() > 1 {
                let what = format!("{ANY_ORIGIN:?} allows all pages: remove it, or the other origins");
                checker.report(&field, what, None);
            }
        } else if !is_origin(origin) {
            let what = format!(
                "expected an origin such as https://chat.example.com, in lower case and without a path, or {ANY_ORIGIN:?}, \
                 found {origin:?}"
            );
            checker.report(&field, what, None);
        }
    }
}

/// Returns whether the text is an origin as browsers write it: scheme, host, and the port if it is not the default.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    let is_default_port = match scheme {
        "https" => authority.ends_with(":443"),
        "http" => authority.ends_with(":80"),
        _ => false,
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte);
    let is_scheme = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    !scheme.is_empty()
        && scheme.bytes().all(is_scheme)
        && !authority.is_empty()
        && authority.bytes().all(is_plain)
        && !is_default_port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_write_it() {
        for right in [
            "https://chat.example.com",
            "http://localhost:3000",
            "http://[::1]:3000",
            "chrome-extension://abcdef",
        ] {
            assert!(is_origin(right), "{right}");
        }
        for wrong in [
            "",
            "null",
            "chat.example.com",
            "https://",
            "https://chat.example.com/",
            "https://Chat.example.com",
            "https://*.example.com",
            "https://chat.example.com:443",
            "https://a@b",
            "://a",
        ] {
            assert!(!is_origin(wrong), "{wrong}");
        }
    }

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
