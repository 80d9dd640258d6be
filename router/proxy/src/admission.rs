//! Authentication, rate limits and the admission queue.
//!
//! A request passes three checks, in this order:
//!
//! 1. [`keys`] finds the API key by its SHA-256. While no keys are required, all callers are the same anonymous one,
//!    whose requests and tokens are not limited.
//! 2. [`limits`] charges token buckets: requests before the body is read, tokens after that.
//! 3. [`gate`] lets a request through while the engines have room. Else it waits in the router, whose queue is ordered
//!    by priority, fair between keys, and free of requests that would be late.
//!
//! [docs/admission.md](../../../docs/admission.md) has the rules, and the effect on turns served in time.

pub mod gate;
pub mod keys;
pub mod limits;
pub mod tenants;

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use policy::units::Millis;
use state::State;

use self::gate::Gate;
use self::keys::Keyring;

/// API keys, settings and gate of admission.
#[derive(Debug)]
pub struct Admission {
    keyring: ArcSwap<Keyring>,
    settings: ArcSwap<config::Admission>,
    pub gate: Gate,
    state: Arc<State>,
}

impl Admission {
    pub fn new(state: Arc<State>) -> Self {
        let (config, now) = (&state.config, state.routing.clock.now());
        Self {
            keyring: ArcSwap::from_pointee(Keyring::new(config, &Keyring::default(), now)),
            gate: Gate::new(config.admission.max_queue.get()),
            settings: ArcSwap::from_pointee(config.admission.clone()),
            state,
        }
    }

    /// Applies another configuration. Remaining keys keep their usage, and waiting requests keep waiting.
    pub fn reload(&self, config: &config::Config, now: Millis) {
        let old = self.keyring.load();
        self.keyring.store(Arc::new(Keyring::new(config, &old, now)));
        self.gate.set_capacity(config.admission.max_queue.get());
        self.settings.store(Arc::new(config.admission.clone()));
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> Guard<Arc<config::Admission>> {
        self.settings.load()
    }

    /// Returns the keys in force.
    pub fn keys(&self) -> Guard<Arc<Keyring>> {
        self.keyring.load()
    }
}
