//! Overrides of the settings for turns of a class of objective, and for those whose request asks for it. An
//! [`Override`] names only what differs; the rest follows the default settings, also after those have changed. A
//! request's override is applied over the class's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OwnWeights, PolicyName, Settings};

/// Overrides by name, written by operators.
pub type Overrides = BTreeMap<String, Override>;

/// Overrides for some turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Override {
    /// Policy.
    #[schemars(with = "Option<String>", extend("enum" = policies_or_none()))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// Upper bound of κ.
    #[schemars(range(min = 1, max = 1e6))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kappa_max: Option<f64>,
    /// Weights of the `tail` policy that differ.
    #[serde(skip_serializing_if = "OwnWeights::is_empty")]
    pub weights: OwnWeights,
}

fn policies_or_none() -> Vec<Option<PolicyName>> {
    PolicyName::ALL.into_iter().map(Some).chain([None]).collect()
}

/// The override that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask<'a> {
    /// The override of this name in [`Settings::named`]; none if it has been removed.
    Named(&'a str),
    /// An override that the request itself carries.
    Own(&'a Override),
}

/// The overrides that acted on a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overridden {
    /// Whether the class's override acted.
    pub class: bool,
    /// Whether the request's override acted.
    pub request: bool,
}

impl Override {
    fn lay_over(&self, settings: &mut Settings) {
        settings.policy = self.policy.unwrap_or(settings.policy);
        settings.kappa_max = self.kappa_max.unwrap_or(settings.kappa_max);
        settings.weights = self.weights.over(settings.weights);
    }
}

impl Settings {
    /// Returns the settings for a turn of this class and request, and which overrides acted; `None` if none applies.
    pub fn for_turn(&self, class: &str, ask: Option<Ask<'_>>) -> Option<(Self, Overridden)> {
        let of_class = self.classes.get(class);
        let of_request = ask.and_then(|ask| match ask {
            Ask::Named(name) => self.named.get(name),
            Ask::Own(own) => Some(own),
        });
        if of_class.is_none() && of_request.is_none() {
            return None;
        }
        let mut own = Self {
            classes: Overrides::new(),
            named: Overrides::new(),
            ..*self
        };
        for laid in [of_class, of_request].into_iter().flatten() {
            laid.lay_over(&mut own);
        }
        let by = Overridden {
            class: of_class.is_some(),
            request: of_request.is_some(),
        };
        Some((own, by))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Snapshot, Turn, WeightName, Weights, WorkerView, decide};
    use super::*;
    use crate::cost::PrefillCost;
    use crate::ids::{ConversationId, PrefixHash, WorkerId};
    use crate::units::{Millis, Tokens};

    fn weights() -> impl Strategy<Value = Weights> {
        prop::collection::vec(0.0..5.0f64, WeightName::ALL.len()).prop_map(|values| {
            let mut own = OwnWeights::default();
            for (weight, value) in WeightName::ALL.into_iter().zip(values) {
                *own.get_mut(weight) = Some(value);
            }
            own.over(Weights::default())
        })
    }

    fn settings() -> impl Strategy<Value = Settings> {
        let policy = prop::sample::select(PolicyName::ALL.to_vec());
        (policy, weights(), 1.0..50.0f64).prop_map(|(policy, weights, kappa_max)| Settings {
            policy,
            weights,
            kappa_max,
            ..Settings::default()
        })
    }

    /// Returns an override that sets every field to the given settings.
    fn all_of(settings: &Settings) -> Override {
        Override {
            policy: Some(settings.policy),
            kappa_max: Some(settings.kappa_max),
            weights: settings.weights.into(),
        }
    }

    fn workers() -> impl Strategy<Value = Vec<WorkerView>> {
        let worker = (0.0..2000.0f64, 0.0..0.99f64, 0..9u32, 0..5000u64, any::<bool>());
        prop::collection::vec(worker, 1..6).prop_map(|all| {
            let view = |(id, (wait, utilisation, in_flight, indexed, ready))| WorkerView {
                id: WorkerId(id),
                ready: ready || id == 0,
                cost: PrefillCost::linear(0.1, 20.0),
                overhead: Millis::ZERO,
                wait: Millis(wait),
                utilisation,
                mean_work: Millis(50.0),
                in_flight,
                indexed: Tokens(indexed),
                conversations: 0.0,
            };
            (0..).zip(all).map(view).collect()
        })
    }

    fn turn<'a>(resident: &'a [Tokens], class: &'a str, ask: Option<Ask<'a>>) -> Turn<'a> {
        Turn {
            prompt: Tokens(4000),
            resident,
            objective: Millis(300.0),
            last_worker: Some(WorkerId(0)),
            conversation: Some(ConversationId(7)),
            head: Some(PrefixHash(9)),
            class,
            ask,
        }
    }

    proptest! {
        /// Overrides of other classes and requests change no term of a turn.
        #[test]
        fn a_turn_without_an_override_is_placed_as_if_there_were_none(
            plain in settings(), other in settings(), workers in workers(), sequence in 0..100u64,
            resident in prop::collection::vec(0..4000u64, 6),
        ) {
            let resident: Vec<Tokens> = resident.into_iter().map(Tokens).collect();
            let others = Settings {
                classes: [("batch".to_owned(), all_of(&other))].into(),
                named: [("fast".to_owned(), all_of(&other))].into(),
                ..plain.clone()
            };
            let under = |settings: &Settings, ask: Option<Ask<'_>>| {
                let snapshot = Snapshot { workers: &workers, settings, sequence };
                format!("{:?}", decide(&snapshot, &turn(&resident, "", ask)))
            };
            prop_assert_eq!(under(&plain, None), under(&others, None));
            prop_assert_eq!(under(&plain, None), under(&others, Some(Ask::Named("gone"))));
        }

        /// An override of every setting places its turns as the same settings for all turns do.
        #[test]
        fn a_turn_with_an_override_is_placed_as_if_it_held_for_all(
            plain in settings(), own in settings(), workers in workers(), sequence in 0..100u64,
            resident in prop::collection::vec(0..4000u64, 6),
        ) {
            let resident: Vec<Tokens> = resident.into_iter().map(Tokens).collect();
            let laid = all_of(&own);
            let with = Settings {
                classes: [("batch".to_owned(), laid)].into(),
                named: [("fast".to_owned(), laid)].into(),
                ..plain
            };
            let terms = |settings: &Settings, class: &str, ask: Option<Ask<'_>>| {
                let snapshot = Snapshot { workers: &workers, settings, sequence };
                let decision = decide(&snapshot, &turn(&resident, class, ask)).unwrap();
                (format!("{:?}", (decision.policy, decision.chosen, decision.terms)), decision.overridden)
            };
            let (expected, nobody) = terms(&own, "batch", None);
            prop_assert_eq!(nobody, Overridden::default());
            for (class, ask, class_acts, request_acts) in [
                ("batch", None, true, false),
                ("", Some(Ask::Named("fast")), false, true),
                ("", Some(Ask::Own(&laid)), false, true),
                ("batch", Some(Ask::Own(&laid)), true, true),
            ] {
                let (placed, by) = terms(&with, class, ask);
                prop_assert_eq!(&placed, &expected);
                prop_assert_eq!(by, Overridden { class: class_acts, request: request_acts });
            }
        }
    }

    #[test]
    fn what_an_override_leaves_out_is_as_for_everybody_and_the_requests_is_laid_over_its_classs() {
        let of_class = Override {
            kappa_max: Some(2.0),
            weights: OwnWeights {
                slo: Some(1.0),
                load: Some(3.0),
                ..OwnWeights::default()
            },
            ..Override::default()
        };
        let mut of_request = Override::default();
        of_request.weights.slo = Some(9.0);
        let settings = Settings {
            classes: [("batch".to_owned(), of_class)].into(),
            ..Settings::default()
        };
        let (own, _) = settings.for_turn("batch", Some(Ask::Own(&of_request))).unwrap();
        let expected = Settings {
            kappa_max: 2.0,
            weights: Weights {
                slo: 9.0,
                load: 3.0,
                ..Weights::default()
            },
            ..Settings::default()
        };
        assert_eq!(own, expected);
    }
}
