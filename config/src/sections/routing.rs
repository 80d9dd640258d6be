//! The routing policy: `[routing]`.

use policy::route::{CacheAware, Overrides, PolicyName, Settings, WeightName, Weights};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::AsPolicySeconds;
use super::checker::Checker;
use super::objective::Class;
use crate::validate::nearest;

/// Class of turns whose objective is in a request header. No configured class has this name.
pub const OF_HEADER: &str = "header";

/// The routing policy, which selects the worker for a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Policy: `tail` minimises the predicted time to first token plus the load that a miss causes; the others are
    /// common policies, for comparison.
    #[schemars(with = "String", extend("enum" = PolicyName::ALL))]
    pub policy: PolicyName,
    /// Upper bound of κ = 1 + ρ/(1 − ρ), the factor by which a busy worker is charged for a miss.
    #[schemars(range(min = 1, max = 1e6))]
    pub kappa_max: f64,
    /// Window, in seconds, over which a worker's utilisation ρ is measured.
    #[serde(rename = "utilisation_window_s", with = "AsPolicySeconds")]
    #[schemars(range(min = 0.1, max = 86_400))]
    pub utilisation_window: Millis,
    /// Treatment of a request for a model that no worker lists, once the lists were read again: `refuse` answers 404,
    /// `pass` sends it to any worker, for engines that accept names which they do not list.
    pub unlisted_models: UnlistedModels,
    /// Initial number of tokens per byte of text, until a model's responses show the actual ratio.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 4))]
    pub tokens_per_byte: f64,
    /// Weights of the `tail` policy. The defaults give the plain formula.
    pub weights: Weights,
    /// Thresholds of the `cache_aware` policy.
    pub cache_aware: CacheAware,
    /// Overrides for the turns of a class of `[[objective.classes]]`, by its name; `header` stands for turns with an
    /// objective in a header. Omitted keys keep their general value.
    #[schemars(extend("maxProperties" = 64))]
    pub classes: Overrides,
    /// Overrides for turns that request them: `x-tailroute-policy: NAME`. Omitted keys keep the value for the turn's
    /// class. Names are letters, digits, `-`, `_` and `.`.
    #[schemars(extend("maxProperties" = 64))]
    pub named: Overrides,
    /// Overrides that a turn may request in its `x-tailroute-policy` header, which is not forwarded to workers. If
    /// nothing may be requested, the header is ignored; otherwise a request for anything else is answered 400.
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
            unlisted_models: UnlistedModels::default(),
            tokens_per_byte: 0.25,
            weights: Weights::default(),
            cache_aware: CacheAware::default(),
            classes: Overrides::new(),
            named: Overrides::new(),
            requests: Requests::default(),
        }
    }
}

/// Treatment of requests for models that no worker lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnlistedModels {
    /// A request for an unlisted model is answered 404.
    #[default]
    Refuse,
    /// A request for an unlisted model is sent to any worker.
    Pass,
}

/// Overrides that turns may request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Requests {
    /// Whether turns may request a name of `[routing.named]`.
    pub named: bool,
    /// Weights that turns may set, as in `x-tailroute-policy: slo=2,locality=0.5`.
    pub weights: Vec<WeightName>,
}

impl Requests {
    /// Returns whether turns may request anything.
    pub fn any(&self) -> bool {
        self.named || !self.weights.is_empty()
    }
}

impl Routing {
    /// Returns policy and weights as the value that [`policy::route`] takes.
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

/// Reports overrides that cannot apply to any turn.
pub(crate) fn check_overrides(routing: &Routing, classes: &[Class], checker: &mut Checker<'_>) {
    for wrong in misnamed(&routing.classes, &routing.named, classes) {
        let (path, what, hint) = wrong;
        checker.report(&format!("routing.{path}"), what, hint);
    }
}

/// Key, problem, and a remedy if one is known.
pub(crate) type Misnamed = (String, String, Option<String>);

/// Returns overrides whose names are not of a class, or are not valid in a header.
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
