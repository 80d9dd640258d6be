//! Tenants: names and salts that isolate the cached prefixes and conversations of tenants from each other.
//!
//! Each name that a tenant uses is replaced by its HMAC-SHA256 (RFC 2104) under the tenant's key before a worker or a
//! table of the router sees it, so no tenant can name or guess another's. A client's own salt still divides the cache.
//!
//! Rejected: the tenant's name in clear text (clients could forge it, and engines refuse some characters); a random key
//! per process (replicas would not share cached prefixes, and a restart would lose them).

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::api::Endpoint;
use crate::{headers, splice, steering};

/// Length in bytes of a name that is sent to workers; long enough to rule out collisions.
const NAME_BYTES: usize = 16;

const SALT: &str = "cache_salt";

/// vLLM's priority header, which would let tenants overtake each other in an engine's queue.
const VLLM_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

/// Member for SGLang's sessions, which names state of other requests in an engine, so that tenants may not send it.
/// [Steering](super::steering) fields, where allowed, are not limited to a tenant either.
const SESSIONS: &str = "session_params";

/// A tenant, by the key that its names and salts are derived from.
#[derive(Debug)]
pub struct Tenant {
    key: hmac::Key,
    seed: u64,
}

impl Tenant {
    /// Creates a tenant whose key is derived from its name and `secret`.
    pub fn new(name: &str, secret: &[u8]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key = hmac::sign(&root, format!("tailroute tenant\0{name}").as_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
        let mut seed = [0; 8];
        let made = hmac::sign(&key, b"seed\0");
        seed.copy_from_slice(&made.as_ref()[..8]);
        Self {
            key,
            // 0 is the seed without tenants.
            seed: u64::from_le_bytes(seed) | 1,
        }
    }

    /// Returns the salt of caches and fingerprints, combined with the client's own: 64 hexadecimal digits.
    pub fn salt(&self, own: Option<&str>) -> String {
        hex(self.name("salt", own.unwrap_or_default().as_bytes()).as_ref())
    }

    /// Returns the name of a conversation: 32 hexadecimal digits.
    pub fn session(&self, own: &[u8]) -> String {
        hex(&self.name("session", own).as_ref()[..NAME_BYTES])
    }

    /// Returns the id under which a response is stored, for the id that the client requested.
    pub fn response(&self, own: &[u8]) -> String {
        format!("resp_{}", hex(&self.name("response", own).as_ref()[..NAME_BYTES]))
    }

    /// Returns the seed for hashes of the tenant's names; never 0.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn name(&self, what: &str, own: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(what.as_bytes());
        // Separator: no `what` contains NUL, so no two inputs coincide.
        context.update(b"\0");
        context.update(own);
        context.sign()
    }
}

/// A change of one member of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Sets the member to this text.
    Set(&'static str, String),
    /// Removes the member.
    Remove(&'static str),
}

/// Members of a body that are changed for tenants.
#[derive(Debug, Default)]
pub struct Given<'a> {
    /// `cache_salt`
    pub salt: Option<&'a str>,
    /// `session_id`
    pub session: Option<&'a str>,
    /// `prompt_cache_key`
    pub cache_key: Option<&'a str>,
    /// `request_id`, for endpoints that store the response under it.
    pub request_id: Option<&'a str>,
    /// Whether `priority` is given, a number that would let a request overtake others in an engine.
    pub priority: bool,
    /// Whether `rid` is given, SGLang's unique name of a request.
    pub rid: bool,
}

/// Returns the member of that name if tenants may not send it.
pub fn foreign(member: &[u8]) -> Option<&'static str> {
    (member == SESSIONS.as_bytes()).then_some(SESSIONS)
}

/// Returns the changes that a tenant's body needs.
pub fn edits(tenant: &Tenant, endpoint: Endpoint, given: &Given<'_>) -> Vec<Edit> {
    let session = |name: &str| tenant.session(name.as_bytes());
    let salted = endpoint.is_cached() || given.salt.is_some();
    let set = |member, text: Option<String>| text.map(|text| Edit::Set(member, text));
    [
        set(SALT, salted.then(|| tenant.salt(given.salt))),
        set("session_id", given.session.map(session)),
        set("prompt_cache_key", given.cache_key.map(session)),
        set(
            "request_id",
            given.request_id.map(|name| tenant.response(name.as_bytes())),
        ),
        given.priority.then_some(Edit::Remove("priority")),
        given.rid.then_some(Edit::Remove("rid")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Applies the changes to a body. Without `salts`, `cache_salt` stays unchanged.
pub fn edited(edits: &[Edit], salts: bool, mut body: Bytes) -> Bytes {
    for edit in edits {
        let edited = match edit {
            Edit::Set(SALT, _) if !salts => None,
            Edit::Set(member, text) => splice::set(&body, member, &format!("\"{text}\"")),
            Edit::Remove(member) => splice::without(&body, member),
        };
        if let Some(edited) = edited {
            body = edited.into();
        }
    }
    body
}

/// Replaces the conversation's name by the tenant's own. Removes vLLM's priority header, and the headers by which
/// SGLang accepts fields.
pub fn settle(tenant: &Tenant, head: &mut HeaderMap) {
    let own = head.remove(headers::SESSION).filter(|own| !own.is_empty());
    if let Some(own) = own
        && let Ok(name) = HeaderValue::try_from(tenant.session(own.as_bytes()))
    {
        head.insert(headers::SESSION, name);
    }
    head.remove(VLLM_PRIORITY);
    let overriding = head
        .keys()
        .filter(|name| name.as_str().starts_with(steering::OVERRIDE));
    for name in overriding.cloned().collect::<Vec<_>>() {
        head.remove(name);
    }
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef";

    proptest! {
        #[test]
        fn no_name_of_one_tenant_is_a_name_of_anothers(
            one in "[a0-9:/@]{1,64}", other in "[a0-9:/@]{1,64}", own in ".{0,300}", its in ".{0,300}",
        ) {
            prop_assume!(one != other);
            let (one, other) = (Tenant::new(&one, SECRET), Tenant::new(&other, SECRET));
            let (salt, its_salt) = (one.salt(Some(&own)), other.salt(Some(&its)));
            prop_assert_ne!(&salt, &its_salt);
            // vLLM accepts at most 128 characters.
            prop_assert!(salt.len() == 64 && salt.bytes().all(|byte| byte.is_ascii_hexdigit()));
            prop_assert_ne!(one.session(own.as_bytes()), other.session(own.as_bytes()));
            prop_assert_ne!(one.response(own.as_bytes()), other.response(own.as_bytes()));
            prop_assert_ne!(one.seed(), other.seed());
        }
    }

    #[test]
    fn kinds_of_names_are_not_each_others() {
        let tenant = Tenant::new("a", SECRET);
        assert!(!tenant.salt(Some("x")).starts_with(&tenant.session(b"x")));
        assert_ne!(
            Tenant::new("a", SECRET).salt(None),
            Tenant::new("a", b"another").salt(None)
        );
    }
}
