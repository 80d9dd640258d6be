//! A turn's time-to-first-token objective.
//!
//! The first of these that is given applies: the time in a header (`x-slo-ttft-ms`, or llm-d's name for it), the class
//! that `x-slo-class` names, the model's class, the configured objective. Invalid headers are ignored.

use config::Objective;
use http::HeaderMap;
use policy::slo::feedback;
use policy::units::Millis;

use protocol::headers;

/// Longest objective a client can request, as in the configuration.
const LONGEST_MS: f64 = 1e9;

/// The source of a turn's objective. A bounded set, used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectiveOrigin {
    /// The objective is the configured one.
    Default,
    /// A header of the request states the time.
    Header,
    /// The objective is that of the class with this index in the configuration.
    Class(usize),
}

/// A turn's objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Longest time to first token that is within the objective.
    pub ttft: Millis,
    pub origin: ObjectiveOrigin,
    /// Whether the request names the objective, by its time or by its class.
    pub is_requested: bool,
}

impl Goal {
    pub fn of(headers: &HeaderMap, model: &str, objective: &Objective) -> Self {
        let names = [
            &headers::SLO_TTFT_MS,
            &headers::SLO_TTFT_MS_LLM_D,
            &headers::SLO_CLASS,
        ];
        let [own, llm_d, class] = headers::first_of(headers, names).map(|value| value?.to_str().ok());
        if let Some(ttft) = own.and_then(millis).or_else(|| llm_d.and_then(millis)) {
            return Self {
                ttft,
                origin: ObjectiveOrigin::Header,
                is_requested: true,
            };
        }
        let named = class.and_then(|name| objective.classes.iter().position(|class| class.name == name));
        let of_model = || {
            let models = |class: &config::Class| class.models.iter().any(|name| name == model);
            objective.classes.iter().position(models)
        };
        let is_requested = named.is_some();
        match named.or_else(of_model) {
            Some(at) => Self {
                ttft: objective.classes[at].ttft,
                origin: ObjectiveOrigin::Class(at),
                is_requested,
            },
            None => Self {
                ttft: objective.ttft,
                origin: ObjectiveOrigin::Default,
                is_requested,
            },
        }
    }

    /// Returns the objective as one of those configured, or as the request states it.
    #[must_use]
    pub fn objective(&self) -> feedback::Objective {
        match self.origin {
            ObjectiveOrigin::Default => feedback::Objective::Configured(0),
            ObjectiveOrigin::Class(at) => feedback::Objective::Configured(at + 1),
            ObjectiveOrigin::Header => feedback::Objective::Requested(self.ttft),
        }
    }

    /// Returns whether the objective applies to a response. The first token of a response that does not stream comes
    /// with its last, so an objective that the request does not name says nothing about it.
    pub fn judges(&self, is_streamed: bool) -> bool {
        is_streamed || self.is_requested
    }
}

impl ObjectiveOrigin {
    /// Returns the name in captures; empty for the configured objective.
    pub fn named(self, objective: &Objective) -> &str {
        match self {
            Self::Default => "",
            other => other.name(objective),
        }
    }

    /// Returns the name in metrics.
    pub fn name(self, objective: &Objective) -> &str {
        match self {
            Self::Default => "default",
            Self::Header => config::OF_HEADER,
            Self::Class(at) => objective.classes.get(at).map_or("default", |class| &class.name),
        }
    }
}

fn millis(text: &str) -> Option<Millis> {
    let value: f64 = text.trim().parse().ok()?;
    (value > 0.0 && value <= LONGEST_MS).then_some(Millis(value))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use policy::units::Tokens;

    use super::*;

    fn with_a_slow_class() -> Objective {
        Objective {
            ttft: Millis(500.0),
            share: 0.95,
            next_prompt: Tokens(200),
            classes: vec![config::Class {
                name: "batch".to_owned(),
                ttft: Millis(30_000.0),
                models: vec!["slow".to_owned()],
            }],
        }
    }

    fn goal(headers: &[(&'static str, &'static str)], model: &str) -> (f64, String) {
        let objective = with_a_slow_class();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        let goal = Goal::of(&map, model, &objective);
        (goal.ttft.0, goal.origin.name(&objective).to_owned())
    }

    #[test]
    fn a_turns_own_time_comes_before_its_class_and_that_before_its_model() {
        let named = ("x-slo-class", "batch");
        assert_eq!(goal(&[], "m"), (500.0, "default".to_owned()));
        assert_eq!(goal(&[], "slow"), (30_000.0, "batch".to_owned()));
        assert_eq!(goal(&[named], "m"), (30_000.0, "batch".to_owned()));
        assert_eq!(
            goal(&[named, ("x-slo-ttft-ms", "120")], "m"),
            (120.0, "header".to_owned())
        );
        assert_eq!(
            goal(&[("x-llm-d-slo-ttft-ms", "80.5")], "m"),
            (80.5, "header".to_owned())
        );
    }

    #[test]
    fn a_response_without_a_stream_is_judged_only_by_the_objective_of_its_request() {
        let objective = with_a_slow_class();
        let judges = |header: Option<(&'static str, &'static str)>, model: &str, is_streamed: bool| {
            let headers =
                header.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            Goal::of(&headers.into_iter().collect(), model, &objective).judges(is_streamed)
        };
        for (header, model, whole) in [
            (None, "m", false),
            (None, "slow", false),
            (Some(("x-slo-class", "nobody")), "m", false),
            (Some(("x-slo-class", "batch")), "m", true),
            (Some(("x-slo-ttft-ms", "120")), "slow", true),
        ] {
            assert_eq!(judges(header, model, false), whole, "{header:?} {model}");
            assert!(judges(header, model, true), "{header:?} {model}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_passed_over() {
        for value in ["0", "-5", "NaN", "inf", "1e99", "soon", ""] {
            assert_eq!(goal(&[("x-slo-ttft-ms", value)], "m").0, 500.0, "{value}");
        }
        assert_eq!(goal(&[("x-slo-class", "nobody")], "m").0, 500.0);
    }
}
