//! Tokens of the admin port: as API keys they are known by their hash, and compared in constant time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use config::Role;
use http::HeaderMap;

use crate::admission::keys::{Sealed, bearer, hash};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The token's name; `loopback` where there are no tokens.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
}

/// Tokens or keys by their names.
pub type Named = BTreeMap<String, ([u8; 32], Option<Role>)>;

/// The tokens in force.
#[derive(Debug, Default)]
pub struct Tokens {
    required: bool,
    open_metrics: bool,
    known: HashMap<Sealed, Principal>,
}

impl Tokens {
    /// Those of a configuration.
    #[must_use]
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

    /// Whether a token has to be shown. If not, the port is on loopback, and whoever reaches it may do everything.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Whether the metrics page is shown without one.
    #[must_use]
    pub fn opens_metrics(&self) -> bool {
        self.open_metrics || !self.required
    }

    /// Their names, each with what tells it from another of that name. For the audit log, which says names alone.
    #[must_use]
    pub fn named(&self) -> Named {
        let named = |(sealed, principal): (&Sealed, &Principal)| {
            (principal.name.to_string(), (sealed.0.0, Some(principal.role)))
        };
        self.known.iter().map(named).collect()
    }

    /// Who a request with these headers is from; `None` if it has to show a token and shows none that is known.
    #[must_use]
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
