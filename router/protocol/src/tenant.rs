//! Tenants: names and salts that keep the prefixes of one from speeding up, or revealing, another's.
//!
//! Whatever a tenant names (its conversations, the namespaces of its prompts) goes through the tenant's own HMAC-SHA256
//! (RFC 2104) before a worker or a table of the router sees it. So no tenant can write, guess or collide with a name of
//! another, and engines are always given a short hexadecimal text. What a client gives as a salt goes into the tenant's,
//! so that it can still divide what is its own.
//!
//! Rejected: the tenant's name in clear (anybody can write another's, and engines refuse some characters and lengths); a
//! random key for each process (replicas would not share what engines cache, and a restart would lose it).

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::routes::Endpoint;
use crate::{headers, splice, steering};

/// Bytes of a name that is told to workers: too many for two to be alike.
const NAME_BYTES: usize = 16;

/// Divides engines' caches.
const SALT: &str = "cache_salt";

/// By which tenants could overtake one another in an engine's queue: vLLM's header.
const VLLM_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

/// A member that a tenant's body may not have: it names what other requests have left in an engine (SGLang's sessions).
/// Where [steering](super::steering) is allowed, its fields are no tenant's either.
const SESSIONS: &str = "session_params";

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    key: hmac::Key,
    seed: u64,
}

impl Tenant {
    /// A tenant of this name, among those that are told apart by this secret.
    #[must_use]
    pub fn new(name: &str, secret: &[u8]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key = hmac::sign(&root, format!("tailroute tenant\0{name}").as_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
        let mut seed = [0; 8];
        let made = hmac::sign(&key, b"seed\0");
        seed.copy_from_slice(&made.as_ref()[..8]);
        Self {
            key,
            // 0 is everybody, where there are no tenants.
            seed: u64::from_le_bytes(seed) | 1,
        }
    }

    /// What divides engines' caches and the router's fingerprints, within what the client divides them by itself: 64
    /// hexadecimal digits.
    #[must_use]
    pub fn salt(&self, own: Option<&str>) -> String {
        hex(self.name("salt", own.unwrap_or_default().as_bytes()).as_ref())
    }

    /// What a conversation of this name is called: 32 hexadecimal digits.
    #[must_use]
    pub fn session(&self, own: &[u8]) -> String {
        hex(&self.name("session", own).as_ref()[..NAME_BYTES])
    }

    /// What a response is called that the client wants called so.
    #[must_use]
    pub fn response(&self, own: &[u8]) -> String {
        format!("resp_{}", hex(&self.name("response", own).as_ref()[..NAME_BYTES]))
    }

    /// Seeds hashes of what this tenant names; never 0.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn name(&self, what: &str, own: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(what.as_bytes());
        // No kind of name holds it, so none can be taken for another.
        context.update(b"\0");
        context.update(own);
        context.sign()
    }
}

/// What becomes of a member of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It is this text, whatever it was.
    Set(&'static str, String),
    /// It is taken out.
    Remove(&'static str),
}

/// What a body gives that names something, as text.
#[derive(Debug, Default)]
pub struct Given<'a> {
    /// `cache_salt`
    pub salt: Option<&'a str>,
    /// `session_id`
    pub session: Option<&'a str>,
    /// `prompt_cache_key`
    pub cache_key: Option<&'a str>,
    /// `request_id`, where the answer is kept by it.
    pub request_id: Option<&'a str>,
    /// `priority`: the number by which a request would overtake others in an engine, those of other tenants too.
    pub priority: bool,
    /// `rid`: SGLang's name for a request, which no two may share.
    pub rid: bool,
}

/// The member of that name, if no tenant may have it.
#[must_use]
pub fn foreign(member: &[u8]) -> Option<&'static str> {
    (member == SESSIONS.as_bytes()).then_some(SESSIONS)
}

/// What a tenant's body has to say otherwise.
#[must_use]
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

/// The body as engines get it. Without `salts`, `cache_salt` stays as it is.
#[must_use]
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

/// Names the conversation in a request's head as the tenant's own, and takes out what would make an engine prefer the
/// request to others', or take it for another.
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

/// Lower-case hexadecimal digits.
#[must_use]
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
            // vLLM takes no more than 128 characters, and not all of them.
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
