//! Sets `Forwarded` (RFC 7239) and the `X-Forwarded-*` headers. Any client can forge them, so they are accepted from
//! trusted proxies only; for other peers they are replaced with what the router sees.

use std::net::IpAddr;

use config::{Forwarded, Http};
use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};

use protocol::headers::remove_where;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Every header that describes a request's origin.
static ALL: [HeaderName; 8] = [
    FORWARDED,
    FOR,
    PROTO,
    HOST,
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-real-ip"),
];

/// The peer of a connection. Created once per connection.
#[derive(Debug)]
pub struct Peer {
    is_trusted: bool,
    address: HeaderValue,
    proto: HeaderValue,
    /// The address and scheme in the syntax of `Forwarded`.
    element: HeaderValue,
}

impl Peer {
    /// Creates a peer. `is_secure`: the connection uses TLS.
    pub fn new(settings: &Http, address: IpAddr, is_secure: bool) -> Self {
        let address = address.to_canonical();
        let proto = if is_secure { "https" } else { "http" };
        let node = match address {
            IpAddr::V4(address) => format!("for={address};proto={proto}"),
            IpAddr::V6(address) => format!("for=\"[{address}]\";proto={proto}"),
        };
        // Addresses are ASCII, so the conversion succeeds. `unknown` is defined by RFC 7239.
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("unknown"));
        Self {
            is_trusted: settings
                .trusted_proxies
                .iter()
                .any(|network| network.contains(address)),
            address: value(&address.to_string()),
            proto: HeaderValue::from_static(proto),
            element: value(&node),
        }
    }

    /// Sets the forwarding headers of a request for `host`.
    pub fn tell(&self, how: Forwarded, host: Option<HeaderValue>, headers: &mut HeaderMap) {
        if how == Forwarded::Append && self.is_trusted {
            return self.append(host, headers);
        }
        remove_where(headers, |name| ALL.contains(name));
        if how != Forwarded::Off {
            headers.insert(FORWARDED, self.element.clone());
            headers.insert(FOR, self.address.clone());
            headers.insert(PROTO, self.proto.clone());
            host.map(|host| headers.insert(HOST, host));
        }
    }

    /// Appends the trusted proxy to the lists that it sent. Its scheme and host are kept.
    fn append(&self, host: Option<HeaderValue>, headers: &mut HeaderMap) {
        let list = |name: &HeaderName, last: &HeaderValue| {
            let mut list = Vec::new();
            for value in headers.get_all(name) {
                list.extend_from_slice(value.as_bytes());
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(last.as_bytes());
            // Valid values joined by a comma are a valid value.
            HeaderValue::try_from(list).unwrap_or_else(|_| last.clone())
        };
        let (chain, elements) = (list(&FOR, &self.address), list(&FORWARDED, &self.element));
        headers.insert(FOR, chain);
        headers.insert(FORWARDED, elements);
        headers.entry(PROTO).or_insert_with(|| self.proto.clone());
        if let Some(host) = host {
            headers.entry(HOST).or_insert(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use config::Network;

    use super::*;

    fn told(how: Forwarded, address: &str, sent: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let settings = Http {
            forwarded: how,
            trusted_proxies: vec![Network::parse("10.0.0.0/8").unwrap()],
            extra_paths: Vec::new(),
            cors_origins: Vec::new(),
            transfer_fields: false,
            tunnel_idle_timeout: std::time::Duration::ZERO,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let peer = Peer::new(&settings, address.parse().unwrap(), false);
        peer.tell(how, Some(HeaderValue::from_static("api.test")), &mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut told: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        told.sort();
        told
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    const SPOOFED: [(&str, &str); 4] = [
        ("forwarded", "for=6.6.6.6"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "6.6.6.6"),
    ];

    #[test]
    fn a_stranger_is_not_believed() {
        let seen = pairs(&[
            ("forwarded", "for=1.2.3.4;proto=http"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "api.test"),
            ("x-forwarded-proto", "http"),
        ]);
        for how in [Forwarded::Append, Forwarded::Replace] {
            assert_eq!(told(how, "1.2.3.4", &SPOOFED), seen);
            assert_eq!(told(how, "::ffff:1.2.3.4", &[]), seen);
        }
        assert_eq!(told(Forwarded::Replace, "10.0.0.1", &SPOOFED)[1].1, "10.0.0.1");
        assert_eq!(told(Forwarded::Off, "10.0.0.1", &SPOOFED), []);
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_named() {
        let sent = [
            ("x-forwarded-for", "9.9.9.9"),
            ("x-forwarded-for", "8.8.8.8"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "public.test"),
        ];
        let told = told(Forwarded::Append, "10.0.0.1", &sent);
        let expected = pairs(&[
            ("forwarded", "for=10.0.0.1;proto=http"),
            ("x-forwarded-for", "9.9.9.9, 8.8.8.8, 10.0.0.1"),
            ("x-forwarded-host", "public.test"),
            ("x-forwarded-proto", "https"),
        ]);
        assert_eq!(told, expected);
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets_and_quotes() {
        assert_eq!(
            told(Forwarded::Append, "fd00::7", &[])[0].1,
            "for=\"[fd00::7]\";proto=http"
        );
    }
}
