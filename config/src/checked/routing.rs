//! How a worker is chosen.

use policy::route::{CacheAware, PolicyName, Settings, Weights};
use policy::units::Millis;

use crate::written;

/// How a worker is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The rule.
    pub policy: PolicyName,
    /// Weights of `tail`; finite and not negative.
    pub weights: Weights,
    /// Upper bound of κ; at least 1.
    pub kappa_max: f64,
    /// Window over which ρ is measured; positive.
    pub utilisation_window: Millis,
    /// Thresholds of `cache_aware`.
    pub cache_aware: CacheAware,
    /// Tokens per byte of text before anything was learned; positive.
    pub tokens_per_byte: f64,
}

impl Default for Routing {
    /// What an empty `[routing]` section means.
    fn default() -> Self {
        routing(written::Routing::default())
    }
}

impl Routing {
    /// Policy and weights as the one value that [`policy::route`] takes.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            policy: self.policy,
            weights: self.weights,
            kappa_max: self.kappa_max,
            cache_aware: self.cache_aware,
        }
    }
}

/// Needs no checker: every value of the section is a number or a name that the schema has checked.
pub(crate) fn routing(written: written::Routing) -> Routing {
    Routing {
        policy: written.policy,
        weights: weights(written.weights),
        kappa_max: written.kappa_max,
        utilisation_window: Millis(written.utilisation_window_s * 1000.0),
        cache_aware: cache_aware(written.cache_aware),
        tokens_per_byte: written.tokens_per_byte,
    }
}

pub(crate) fn weights(written: written::Weights) -> Weights {
    let written::Weights {
        locality,
        home,
        load,
        slo,
        affinity_ms,
        spread_ms,
    } = written;
    Weights {
        locality,
        home,
        load,
        slo,
        affinity_ms,
        spread_ms,
    }
}

pub(crate) fn cache_aware(written: written::CacheAware) -> CacheAware {
    let written::CacheAware {
        match_threshold,
        imbalance_abs,
        imbalance_rel,
    } = written;
    CacheAware {
        match_threshold,
        imbalance_abs,
        imbalance_rel,
    }
}
