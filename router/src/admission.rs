//! Who may come in, how much each may use, and who waits.
//!
//! Three questions, in the order in which a request meets them:
//!
//! 1. *Whose is it?* ([`keys`]) An API key, known by its SHA-256. As long as none is configured everybody is one and the
//!    same anonymous caller, and nothing below costs anything.
//! 2. *May it?* ([`limits`]) A token bucket of requests before the body is read, one of tokens once it has been: charged
//!    by the prompt's estimate, corrected by what the engine counted.
//! 3. *Now?* ([`gate`]) While the engines have room a request goes straight through. Engines have no room when as many
//!    requests are with them as `max_concurrent_per_worker` allows per ready worker, or when the least busy worker is
//!    predicted to make a turn wait longer than `max_wait_ms`. Then it waits *here*, where the order can still be changed:
//!    by priority, fairly between keys, and not at all if it would be late.
//!
//! Why not leave the queue to the engines? Theirs is first come, first served, knows no keys, and once it is longer than
//! the objective every turn that leaves it is late: the fleet is as busy as ever and serves nobody in time. A queue that
//! sheds what would be late keeps the share of turns served in time at what the fleet can do
//! ([docs/admission.md](../../../docs/admission.md) has the figures).

pub mod gate;
pub mod keys;
pub mod limits;
pub mod tenants;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use policy::units::Millis;

use self::gate::Gate;
use self::keys::{Caller, Keyring};
use self::limits::Left;
use crate::operator::tokens::Named;
use protocol::error::ApiError;

/// Admission as it is in force.
#[derive(Debug)]
pub struct Admission {
    keyring: ArcSwap<Keyring>,
    settings: ArcSwap<config::Admission>,
    /// Where requests wait.
    pub gate: Gate,
}

impl Admission {
    /// Admission by this configuration.
    #[must_use]
    pub fn new(config: &config::Config, now: Millis) -> Self {
        Self {
            keyring: ArcSwap::from_pointee(Keyring::new(config, &Keyring::default(), now)),
            gate: Gate::new(config.admission.max_queue.get()),
            settings: ArcSwap::from_pointee(config.admission.clone()),
        }
    }

    /// Another configuration. What keys that stay have used stays used, and who waits goes on waiting.
    pub fn reload(&self, config: &config::Config, now: Millis) {
        let old = self.keyring.load();
        self.keyring.store(Arc::new(Keyring::new(config, &old, now)));
        self.gate.set_capacity(config.admission.max_queue.get());
        self.settings.store(Arc::new(config.admission.clone()));
    }

    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> Arc<config::Admission> {
        self.settings.load_full()
    }

    /// Whether callers are told apart. If so their keys are for the router alone, and workers do not see them.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.keyring.load().is_required()
    }

    /// The keys' names.
    #[must_use]
    pub fn named(&self) -> Named {
        self.keyring.load().named()
    }

    /// Charges to keys that are not settled yet.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.keyring.load().unsettled()
    }

    /// Tokens that the key of this name has left; `None` if it has no bound, or is none.
    #[must_use]
    pub fn left(&self, name: &str, now: Millis) -> Option<f64> {
        self.keyring.load().left(name, now)
    }

    /// What each key has left of its requests and its tokens, by name.
    #[must_use]
    pub fn left_of_all(&self, now: Millis) -> Vec<(String, [Option<Left>; 2])> {
        self.keyring.load().left_of_all(now)
    }

    /// Gives the key of this name all back that it has used. What it had left before and has now; `None` if there is none.
    #[must_use]
    pub fn reset(&self, name: &str, now: Millis) -> Option<[[Option<Left>; 2]; 2]> {
        self.keyring.load().reset(name, now)
    }

    /// Whose a request is.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`] if keys are required and it shows none that is known.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        self.keyring.load().identify(headers)
    }
}
