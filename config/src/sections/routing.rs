//! How a worker is chosen: `[routing]`.

use policy::route::{CacheAware, Overrides, PolicyName, Settings, WeightName, Weights};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::seconds_of_policy;
use super::checker::Checker;
use super::objective::Class;
use crate::validate::nearest;

/// The class, in [`Settings::classes`], of turns that bring their objective along.
const OF_HEADER: &str = "header";

/// How a worker is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// The rule: `tail` minimises predicted time to first token plus the load that a miss causes; the others are the
    /// field's rules, for comparison.
    #[schemars(with = "String", extend("enum" = PolicyName::ALL))]
    pub policy: PolicyName,
    /// Upper bound of κ = 1 + ρ/(1 − ρ), the factor by which a busy worker is charged for a miss.
    #[schemars(range(min = 1, max = 1e6))]
    pub kappa_max: f64,
    /// Window, in seconds, over which a worker's utilisation ρ is measured.
    #[serde(rename = "utilisation_window_s", with = "seconds_of_policy")]
    #[schemars(with = "f64", range(min = 0.1, max = 86_400))]
    pub utilisation_window: Millis,
    /// Tokens per byte of text that a model is assumed to have until its answers have shown the real ratio.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 4))]
    pub tokens_per_byte: f64,
    /// Weights of the `tail` rule. The defaults make the plain formula.
    pub weights: Weights,
    /// Thresholds of the `cache_aware` rule.
    pub cache_aware: CacheAware,
    /// What differs for the turns of a class of `[[objective.classes]]`, by its name; `header` is of turns that bring
    /// their own objective along. What is left out is as for everybody.
    #[schemars(extend("maxProperties" = 64))]
    pub classes: Overrides,
    /// What differs for turns that ask for it: `x-tailroute-policy: NAME`. What is left out is as for their class. Names
    /// are letters, digits, `-`, `_` and `.`.
    #[schemars(extend("maxProperties" = 64))]
    pub named: Overrides,
    /// What a turn may ask for with its `x-tailroute-policy` header, which workers never see. Where it may ask for
    /// nothing, the header is ignored; where it may, one that asks for anything else is answered 400.
    pub requests: Requests,
}

impl Default for Routing {
    fn default() -> Self {
        let Settings {
            policy, kappa_max, ..
        } = Settings::default();
        Self {
            policy,
            kappa_max,
            utilisation_window: Millis(60_000.0),
            tokens_per_byte: 0.25,
            weights: Weights::default(),
            cache_aware: CacheAware::default(),
            classes: Overrides::new(),
            named: Overrides::new(),
            requests: Requests::default(),
        }
    }
}

/// What turns may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Requests {
    /// Whether they may ask for a name of `[routing.named]`.
    pub named: bool,
    /// Weights that they may set themselves, as in `x-tailroute-policy: slo=2,locality=0.5`.
    pub weights: Vec<WeightName>,
}

impl Requests {
    /// Whether they may ask for anything.
    #[must_use]
    pub fn any(&self) -> bool {
        self.named || !self.weights.is_empty()
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
            classes: self.classes.clone(),
            named: self.named.clone(),
        }
    }
}

/// Reports overrides that no turn can have.
pub(super) fn check_overrides(routing: &Routing, classes: &[Class], checker: &mut Checker<'_>) {
    for wrong in misnamed(&routing.classes, &routing.named, classes) {
        let (path, what, hint) = wrong;
        checker.report(&format!("routing.{path}"), what, hint);
    }
}

/// A key, what is wrong with it, and what it may have been.
pub(crate) type Misnamed = (String, String, Option<String>);

/// Overrides whose names are of no class, or cannot stand in a header.
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
