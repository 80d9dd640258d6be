//! Tenants, and the isolation of their names.
//!
//! Every name that a tenant uses (conversations, namespaces of prompts) is replaced by its HMAC-SHA256 (RFC 2104) under
//! the tenant's own key before a worker sees it or a table of the router is searched for it. So no tenant can name,
//! guess or collide with another one's names, and engines always get a short hexadecimal text.
//!
//! The key is derived from `admission.salt_secret_file`, if there is one, which outlives API keys. Without it the
//! digests of the tenant's own API keys are used: restarts and replicas agree on them, and only a holder of all the
//! tenant's keys could compute them. A tenant whose keys change then begins with cold caches; other tenants are not
//! affected.
//!
//! Rejected: the tenant's name in clear (anyone could send another's, and engines refuse some characters and lengths);
//! a random key for each process (replicas would not share what engines cache, and a restart would lose it).

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::hmac;

use super::keys::hex;

/// Bytes of a name that is sent to workers, long enough to rule out collisions.
const NAME_BYTES: usize = 16;

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    key: hmac::Key,
    seed: u64,
}

/// Returns the tenants of a configuration, by name.
#[must_use]
pub fn all(config: &config::Config) -> HashMap<&str, Arc<Tenant>> {
    let secret = config.admission.salt_secret.as_ref();
    let mut digests: HashMap<&str, Vec<[u8; 32]>> = HashMap::new();
    for key in &config.keys {
        digests.entry(&key.tenant).or_default().push(key.digest.0);
    }
    let tenant = |(name, mut digests): (_, Vec<[u8; 32]>)| {
        digests.sort_unstable();
        let own = digests.concat();
        let secret = secret.map_or(&*own, |secret| secret.expose().as_bytes());
        (name, Arc::new(Tenant::new(name, secret)))
    };
    digests.into_iter().map(tenant).collect()
}

impl Tenant {
    /// Creates a tenant whose key is derived from its name and `secret`.
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
            // 0 is the seed without tenants.
            seed: u64::from_le_bytes(seed) | 1,
        }
    }

    /// Returns the salt that divides engines' caches and the router's fingerprints, combined with the client's own: 64
    /// hexadecimal digits.
    #[must_use]
    pub fn salt(&self, own: Option<&str>) -> String {
        hex(self.name("salt", own.unwrap_or_default().as_bytes()).as_ref())
    }

    /// Returns the name of a conversation: 32 hexadecimal digits.
    #[must_use]
    pub fn session(&self, own: &[u8]) -> String {
        hex(&self.name("session", own).as_ref()[..NAME_BYTES])
    }

    /// Returns the id of a response for the id that the client requested.
    #[must_use]
    pub fn response(&self, own: &[u8]) -> String {
        format!("resp_{}", hex(&self.name("response", own).as_ref()[..NAME_BYTES]))
    }

    /// Returns the seed for hashes of the tenant's names; never 0.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn name(&self, what: &str, own: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(what.as_bytes());
        // No kind contains it, so no two inputs coincide.
        context.update(b"\0");
        context.update(own);
        context.sign()
    }
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
            // vLLM accepts at most 128 characters, and not all of them.
            prop_assert!(salt.len() == 64 && salt.bytes().all(|byte| byte.is_ascii_hexdigit()));
            prop_assert_ne!(one.session(own.as_bytes()), other.session(own.as_bytes()));
            prop_assert_ne!(one.response(own.as_bytes()), other.response(own.as_bytes()));
            prop_assert_ne!(one.seed(), other.seed());
        }
    }

    fn key(name: &str, tenant: &str) -> config::Key {
        config::Key {
            name: name.to_owned(),
            digest: super::super::keys::hash(name.as_bytes()),
            tenant: tenant.to_owned(),
            weight: 1.0,
            priority: 0,
            requests: None,
            tokens: None,
            explain: false,
        }
    }

    fn salts(config: &config::Config) -> [String; 2] {
        let tenants = all(config);
        ["a", "b"].map(|name| tenants[name].salt(None))
    }

    #[test]
    fn configurations_agree_on_names_and_a_tenant_that_changes_its_keys_changes_its_own_only() {
        let overrides = config::Overrides {
            workers: vec!["http://127.0.0.1:1".to_owned()],
            ..config::Overrides::default()
        };
        let mut config = config::load_file(None, std::collections::BTreeMap::new(), overrides).unwrap();
        config.keys = vec![key("1", "a"), key("2", "a"), key("3", "b")];
        let [a, b] = salts(&config);
        assert_ne!(a, b);
        config.keys.reverse();
        assert_eq!(salts(&config), [a.clone(), b.clone()]);
        config.keys[2] = key("4", "a");
        let rotated = salts(&config);
        assert_ne!(rotated[0], a);
        assert_eq!(rotated[1], b);
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
