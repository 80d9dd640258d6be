//! Policies and weights that an operator can set.

use serde::{Deserialize, Serialize};

use super::{CacheAware, Overrides, PolicyName, Weights};

/// Policy and weights, replaced as one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The policy in force.
    pub policy: PolicyName,
    /// Weights of `tail`.
    pub weights: Weights,
    /// Upper bound of κ.
    pub kappa_max: f64,
    /// Thresholds of `cache_aware`.
    pub cache_aware: CacheAware,
    /// Overrides for the turns of a class, by the class's name.
    pub classes: Overrides,
    /// Overrides that requests can ask for, by name.
    pub named: Overrides,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            weights: Weights::default(),
            kappa_max: 30.0,
            cache_aware: CacheAware::default(),
            classes: Overrides::new(),
            named: Overrides::new(),
        }
    }
}
