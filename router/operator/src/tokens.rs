//! Tokens of the admin API, stored by their hash like API keys, and compared in constant time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use config::Role;
use http::HeaderMap;

use crate::secret::{Sealed, bearer, hash};

/// Identity of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Name of the token; `loopback` where there are no tokens.
    pub name: Arc<str>,
    pub role: Role,
}

/// Hash and role of each token or key, by name.
pub type NamedDigests = BTreeMap<String, ([u8; 32], Option<Role>)>;

/// Tokens in force, and the rules for callers without one.
#[derive(Debug, Default)]
pub struct Tokens {
    required: bool,
    open_metrics: bool,
    known: HashMap<Sealed, Principal>,
}

impl Tokens {
    /// Returns the tokens of a configuration.
    pub fn new(admin: &config::Admin) -> Self {
        let token = |token: &config::Token| {
            let principal = Principal {
                name: token.name.as_str().into(),
                role: token.role,
            };
            (Sealed(token.digest), principal)
        };
        Self {
            required: admin.tokens_file.is_some(),
            open_metrics: admin.open_metrics,
            known: admin.tokens.iter().map(token).collect(),
        }
    }

    /// Returns whether a token is required. Otherwise the port is on loopback and every caller has all rights.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Returns whether the metrics page needs no token.
    #[must_use]
    pub fn opens_metrics(&self) -> bool {
        self.open_metrics || !self.required
    }

    /// Returns the tokens by name, with hash and role, to detect changes. The audit log shows names only.
    pub fn named(&self) -> NamedDigests {
        let named = |(sealed, principal): (&Sealed, &Principal)| {
            (principal.name.to_string(), (sealed.0.0, Some(principal.role)))
        };
        self.known.iter().map(named).collect()
    }

    /// Returns the caller of a request with these headers; `None` if a valid token is required and missing.
    pub fn identify(&self, headers: &HeaderMap) -> Option<Principal> {
        if !self.required {
            return Some(Principal {
                name: "loopback".into(),
                role: Role::Admin,
            });
        }
        self.known.get(&Sealed(hash(bearer(headers)?))).cloned()
    }
}
