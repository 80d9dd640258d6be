//! Settings of routing.

use std::collections::BTreeMap;

use policy::route::{CacheAware, Override, Overrides, OwnWeights, PolicyName, Settings, Weights};
use policy::units::Millis;

use super::checker::Checker;
use super::objective::Class;
use crate::validate::nearest;
use crate::written::{self, WeightName};

/// Class, in [`Settings::classes`], of turns with an objective in a header.
const OF_HEADER: &str = "header";

/// Settings of routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Routing policy.
    pub policy: PolicyName,
    /// Weights of `tail`; finite and not negative.
    pub weights: Weights,
    /// Upper bound of κ; at least 1.
    pub kappa_max: f64,
    /// Window over which ρ is measured; positive.
    pub utilisation_window: Millis,
    /// Thresholds of `cache_aware`.
    pub cache_aware: CacheAware,
    /// Initial tokens per byte of text; positive.
    pub tokens_per_byte: f64,
    /// Overrides for classes of turns.
    pub classes: Overrides,
    /// Overrides that turns request by name.
    pub named: Overrides,
    /// Overrides that turns may request.
    pub requests: Requests,
}

/// Overrides that turns may request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Whether turns may request named overrides.
    pub named: bool,
    /// Weights that turns may set.
    pub weights: Vec<WeightName>,
}

impl Requests {
    /// Returns whether turns may request anything.
    #[must_use]
    pub fn any(&self) -> bool {
        self.named || !self.weights.is_empty()
    }
}

impl Default for Routing {
    /// Returns the settings for an empty `[routing]` section.
    fn default() -> Self {
        routing(written::Routing::default())
    }
}

impl Routing {
    /// Returns policy and weights as the value that [`policy::route`] takes.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            policy: self.policy,
            weights: self.weights,
            kappa_max: self.kappa_max,
            cache_aware: self.cache_aware,
            classes: self.classes.clone(),
            named: self.named.clone(),
        }
    }
}

/// Converts the section. Needs no checker: the schema has checked every value. [`check_overrides`] checks the names of
/// overrides.
pub(crate) fn routing(written: written::Routing) -> Routing {
    Routing {
        policy: written.policy,
        weights: weights(written.weights),
        kappa_max: written.kappa_max,
        utilisation_window: Millis(written.utilisation_window_s * 1000.0),
        cache_aware: cache_aware(written.cache_aware),
        tokens_per_byte: written.tokens_per_byte,
        classes: overrides(&written.classes),
        named: overrides(&written.named),
        requests: Requests {
            named: written.requests.named,
            weights: written.requests.weights,
        },
    }
}

/// Reports overrides that cannot apply to any turn.
pub(super) fn check_overrides(routing: &Routing, classes: &[Class], checker: &mut Checker<'_>) {
    for wrong in misnamed(&routing.classes, &routing.named, classes) {
        let (path, what, hint) = wrong;
        checker.report(&format!("routing.{path}"), what, hint);
    }
}

/// A key, the problem, and a remedy.
pub(crate) type Misnamed = (String, String, Option<String>);

/// Returns overrides whose names are not of a class, or do not fit a header.
pub(crate) fn misnamed(of_classes: &Overrides, named: &Overrides, classes: &[Class]) -> Vec<Misnamed> {
    let known = || classes.iter().map(|class| &*class.name).chain([OF_HEADER]);
    let no_class = |name: &&String| !known().any(|known| known == *name);
    let no_name = |name: &&String| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !(1..=64).contains(&name.len()) || !name.bytes().all(fits)
    };
    let of_no_class = of_classes.keys().filter(no_class).map(|name| {
        let names: Vec<_> = known().collect();
        let what = format!("there is no such class; the classes are {}", names.join(", "));
        let hint = nearest(name, known()).map(|name| format!("did you mean `{name}`?"));
        (format!("classes.{name}"), what, hint)
    });
    let unspeakable = named.keys().filter(no_name).map(|name| {
        let what = "expected a name of 1 to 64 letters, digits, `-`, `_` and `.`".to_owned();
        (format!("named.{name}"), what, None)
    });
    of_no_class.chain(unspeakable).collect()
}

pub(crate) fn overrides(written: &BTreeMap<String, written::Override>) -> Overrides {
    let one = |(name, written): (&String, &written::Override)| {
        let written::OwnWeights {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        } = written.weights;
        let own = Override {
            policy: written.policy,
            kappa_max: written.kappa_max,
            weights: OwnWeights {
                locality,
                home,
                load,
                slo,
                affinity_ms,
                spread_ms,
            },
        };
        (name.clone(), own)
    };
    written.iter().map(one).collect()
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
