//! The `Via` field (RFC 9110, section 7.6.3), which names the proxies that a message has passed.
//!
//! Each router process has a pseudonym of its own, so that routers in a chain differ, and a request that comes back to
//! a router is recognised.

use std::hash::{BuildHasher as _, RandomState};

use http::header::VIA;
use http::{HeaderMap, HeaderValue, Version};

const NAME: &str = "tailroute";

/// Pseudonym of a router, and the values of `Via` with it.
#[derive(Debug)]
pub struct Via {
    pseudonym: String,
    http_10: HeaderValue,
    http_11: HeaderValue,
    http_2: HeaderValue,
}

impl Via {
    /// Creates a random pseudonym.
    pub fn of_this_process() -> Self {
        // The standard library takes its hash keys from the operating system.
        Self::of(RandomState::new().hash_one(0_u8))
    }

    fn of(number: u64) -> Self {
        let pseudonym = format!("{NAME}-{number:016x}");
        let value = |version: &str| {
            let value = HeaderValue::try_from(format!("{version} {pseudonym}"));
            // Letters, digits and a dash are a valid value.
            value.unwrap_or(HeaderValue::from_static(NAME))
        };
        Self {
            http_10: value("1.0"),
            http_11: value("1.1"),
            http_2: value("2"),
            pseudonym,
        }
    }

    /// Returns the value for a request that was received in this version of HTTP, or made by the router.
    pub fn of_request(&self, received: Version) -> HeaderValue {
        match received {
            Version::HTTP_09 | Version::HTTP_10 => &self.http_10,
            Version::HTTP_2 => &self.http_2,
            _ => &self.http_11,
        }
        .clone()
    }

    /// Returns the value for a worker's response, which need not tell routers apart.
    pub fn of_response() -> HeaderValue {
        HeaderValue::from_static("1.1 tailroute")
    }

    /// Returns whether a request has passed this router before.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut passed = headers
            .get_all(VIA)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        passed.any(|hop| {
            let mut words = hop.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.nth(1) == Some(self.pseudonym.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_recognises_itself_and_no_other() {
        let (own, other) = (Via::of(1), Via::of(2));
        let mut headers = HeaderMap::new();
        assert!(!own.is_in(&headers));
        headers.append(VIA, HeaderValue::from_static("1.0 front, 1.1 tailroute"));
        headers.append(VIA, other.of_request(Version::HTTP_2));
        assert!(!own.is_in(&headers) && other.is_in(&headers));
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            let mut headers = headers.clone();
            headers.append(VIA, own.of_request(version));
            assert!(own.is_in(&headers), "{version:?}");
        }
        let listed = "HTTP/1.1\ttailroute-0000000000000001 (a comment) ,2 tailroute-0000000000000002";
        let headers = HeaderMap::from_iter([(VIA, HeaderValue::from_static(listed))]);
        assert!(own.is_in(&headers) && other.is_in(&headers));
    }

    #[test]
    fn each_process_has_a_pseudonym_of_its_own() {
        let [one, other] = [(); 2].map(|()| Via::of_this_process());
        assert_ne!(one.pseudonym, other.pseudonym);
    }
}
