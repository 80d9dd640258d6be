//! Metrics named by OpenTelemetry's semantic conventions for generative AI, in Prometheus's spelling, so that
//! dashboards for any inference server work. The buckets are those of the conventions.

use std::collections::HashSet;

use parking_lot::RwLock;
use policy::units::Millis;

use super::Metrics;
use super::labelled::{Histogram, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Buckets, Kind, Label, OTHER, Spec, Values, of};
use protocol::api::GenAiOperation;
use telemetry::context::TraceId;

const OPERATION: Label = of("gen_ai_operation_name", &GenAiOperation::NAMES);
/// Listed models with series of their own: names from clients cannot take their places.
const MOST_LISTED: usize = 20;
/// Other models with series of their own, for fleets whose lists cannot be read.
const MOST_UNLISTED: usize = 4;

const MODEL: Label = Label {
    name: "gen_ai_request_model",
    values: Values::Named(
        "the requested model, of turns that were answered: the first 20 that workers list, and 4 others",
        MOST_LISTED + MOST_UNLISTED,
    ),
};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "gen_ai_server_time_to_first_token_seconds",
        kind: Kind::Histogram(&Buckets {
            bounds: &[
                0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
            ],
            exemplars: true,
        }),
        unit: "seconds",
        labels: &[OPERATION, MODEL],
        help: "Time to generate the first token of successful responses.",
        gen_ai: Some("gen_ai.server.time_to_first_token"),
    },
    Spec {
        name: "gen_ai_server_time_per_output_token_seconds",
        kind: Kind::Histogram(&Buckets {
            bounds: &[
                0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
            ],
            exemplars: false,
        }),
        unit: "seconds",
        labels: &[OPERATION, MODEL],
        help: "Time per output token after the first, for streams whose worker reported token counts.",
        gen_ai: Some("gen_ai.server.time_per_output_token"),
    },
    Spec {
        name: "gen_ai_server_request_duration_seconds",
        kind: Kind::Histogram(&Buckets {
            bounds: &[
                0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
            ],
            exemplars: false,
        }),
        unit: "seconds",
        labels: &[OPERATION, MODEL],
        help: "Time from a turn's last byte in to its response's last byte out, for complete responses.",
        gen_ai: Some("gen_ai.server.request.duration"),
    },
    Spec {
        name: "gen_ai_client_token_usage",
        kind: Kind::Histogram(&Buckets {
            bounds: &[
                1.0,
                4.0,
                16.0,
                64.0,
                256.0,
                1024.0,
                4096.0,
                16_384.0,
                65_536.0,
                262_144.0,
                1_048_576.0,
            ],
            exemplars: false,
        }),
        unit: "tokens",
        labels: &[MODEL, of("gen_ai_token_type", &["input", "output"])],
        help: "Tokens of prompts (input) and responses (output), as reported by workers.",
        gen_ai: Some("gen_ai.client.token.usage"),
    },
];

#[derive(Debug)]
pub(super) struct GenAi {
    ttft: Labelled<Histogram>,
    per_output_token: Labelled<Histogram>,
    duration: Labelled<Histogram>,
    tokens: Labelled<Histogram>,
    names: RwLock<Names>,
}

/// Names of models with series of their own.
#[derive(Debug, Default)]
struct Names {
    listed: HashSet<String>,
    unlisted: HashSet<String>,
}

impl GenAi {
    /// Returns the label of a model: its name, or `other`.
    fn label<'a>(&self, model: &'a str) -> &'a str {
        {
            let names = self.names.read();
            if names.listed.contains(model) || names.unlisted.contains(model) {
                return model;
            }
            if names.unlisted.len() >= MOST_UNLISTED {
                return OTHER;
            }
        }
        let mut names = self.names.write();
        if names.unlisted.len() < MOST_UNLISTED {
            names.unlisted.insert(model.to_owned());
        }
        if names.unlisted.contains(model) {
            model
        } else {
            OTHER
        }
    }
}

/// A complete response.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Name of a [`GenAiOperation`].
    pub operation: &'static str,
    pub model: &'a str,
    /// Time from the request's last byte to the first token.
    pub ttft: Millis,
    /// Time from the request's last byte to the response's last byte.
    pub took: Millis,
    /// Whether the response was streamed.
    pub streamed: bool,
    /// Tokens of prompt and response, if the worker counted them.
    pub counted: Option<[u64; 2]>,
    /// Trace for the exemplar.
    pub trace: Option<TraceId>,
}

impl GenAi {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            ttft: metrics.labelled("gen_ai_server_time_to_first_token_seconds")?,
            per_output_token: metrics.labelled("gen_ai_server_time_per_output_token_seconds")?,
            duration: metrics.labelled("gen_ai_server_request_duration_seconds")?,
            tokens: metrics.labelled("gen_ai_client_token_usage")?,
            names: RwLock::default(),
        })
    }
}

impl Metrics {
    /// Gives listed models series of their own while there is room, in order.
    pub fn listed(&self, models: &[String]) {
        let mut names = self.gen_ai.names.write();
        for model in models {
            if names.listed.len() < MOST_LISTED {
                names.listed.insert(model.clone());
            }
        }
    }

    /// Records a complete response.
    pub fn answered(&self, turn: &Answered<'_>) {
        let metrics = &self.gen_ai;
        let model = metrics.label(turn.model);
        let by = [turn.operation, model];
        metrics.ttft.observe_of(&by, turn.ttft.0 / 1e3, turn.trace);
        metrics.duration.observe(&by, turn.took.0 / 1e3);
        let Some([input, output]) = turn.counted else {
            return;
        };
        if turn.streamed && output > 1 {
            let after_the_first = (turn.took - turn.ttft).0 / 1e3;
            metrics
                .per_output_token
                .observe(&by, after_the_first / (output - 1) as f64);
        }
        for (kind, tokens) in [("input", input), ("output", output)] {
            metrics.tokens.observe(&[model, kind], tokens as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_clients_take_no_place_of_a_listed_model() {
        let metrics = Metrics::new().unwrap();
        let label = |model: &str| metrics.gen_ai.label(model).to_owned();
        for junk in 0..40 {
            label(&format!("junk-{junk}"));
        }
        assert_eq!(
            (label("junk-3"), label("junk-4")),
            ("junk-3".to_owned(), OTHER.to_owned())
        );
        assert_eq!(label("real"), OTHER);
        metrics.listed(&["real".to_owned()]);
        assert_eq!(label("real"), "real");
        let many: Vec<String> = (0..40).map(|at| format!("m{at}")).collect();
        metrics.listed(&many);
        assert_eq!((label("m18"), label("m19")), ("m18".to_owned(), OTHER.to_owned()));
    }

    #[test]
    fn a_listed_model_has_its_series_after_any_number_of_other_names() {
        let metrics = Metrics::new().unwrap();
        let answered = |model: &str| {
            metrics.answered(&Answered {
                operation: "chat",
                model,
                ttft: Millis(10.0),
                took: Millis(20.0),
                streamed: true,
                counted: None,
                trace: None,
            });
        };
        for junk in 0..40 {
            answered(&format!("junk-{junk}"));
        }
        let listed: Vec<String> = (0..MOST_LISTED).map(|at| format!("m{at}")).collect();
        metrics.listed(&listed);
        for model in &listed {
            answered(model);
        }
        // 4 other names, `other`, and every listed model.
        assert_eq!(metrics.gen_ai.duration.len(), MOST_UNLISTED + 1 + MOST_LISTED);
    }
}
