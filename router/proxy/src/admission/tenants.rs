//! The tenants of a configuration. The key of a tenant's names ([`protocol::tenant`]) is derived from the salt secret,
//! or else from the digests of all its API keys, which only their holder can compute (`docs/admission.md`, Tenants).

use std::collections::HashMap;
use std::sync::Arc;

use protocol::tenant::Tenant;

/// Returns the tenants of a configuration, by name.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, tenant: &str) -> config::Key {
        config::Key {
            name: name.to_owned(),
            digest: operator::secret::hash(name.as_bytes()),
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
}
