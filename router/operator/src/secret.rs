//! Keys and tokens, compared by their hash in constant time.

use std::hash::{Hash, Hasher};

use aws_lc_rs::{constant_time, digest};
use config::KeyDigest;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// A digest that is compared in constant time.
#[derive(Clone, Copy, Debug)]
pub struct Sealed(pub KeyDigest);

impl Hash for Sealed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.0.hash(state);
    }
}

impl PartialEq for Sealed {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0.0, &other.0.0).is_ok()
    }
}

impl Eq for Sealed {}

/// Returns the bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Returns the SHA-256 of a key.
pub fn hash(key: &[u8]) -> KeyDigest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, key).as_ref());
    KeyDigest(bytes)
}
