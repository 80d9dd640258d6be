//! Metrics named by OpenTelemetry's semantic conventions for generative AI, in Prometheus's spelling, so that
//! dashboards for any inference server work. The buckets are those of the conventions.

use policy::units::Millis;

use super::Metrics;
use super::labelled::{Histogram, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Buckets, Kind, Label, Spec, Values, of};
use telemetry::context::TraceId;

const OPERATION: Label = of(
    "gen_ai_operation_name",
    &["chat", "text_completion", "generate_content"],
);
const MODEL: Label = Label {
    name: "gen_ai_request_model",
    values: Values::Named("the requested model, of turns that were answered", 16),
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
}

/// A complete response.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Operation: `chat` or `text_completion`.
    pub operation: &'static str,
    /// Requested model.
    pub model: &'a str,
    /// Time from the request's last byte to the first token.
    pub ttft: Millis,
    /// Time from the request's last byte to the response's last byte.
    pub took: Millis,
    /// Whether the response was streamed.
    pub streamed: bool,
    /// Tokens of prompt and response, if the worker counted them.
    pub counted: Option<[u64; 2]>,
    /// Trace of the request.
    pub trace: Option<TraceId>,
}

impl GenAi {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            ttft: metrics.labelled("gen_ai_server_time_to_first_token_seconds")?,
            per_output_token: metrics.labelled("gen_ai_server_time_per_output_token_seconds")?,
            duration: metrics.labelled("gen_ai_server_request_duration_seconds")?,
            tokens: metrics.labelled("gen_ai_client_token_usage")?,
        })
    }
}

impl Metrics {
    /// Records a complete response.
    pub fn answered(&self, turn: &Answered<'_>) {
        let by = [turn.operation, turn.model];
        let metrics = &self.gen_ai;
        metrics
            .ttft
            .with_label_values(&by)
            .observe_of(turn.ttft.0 / 1e3, turn.trace);
        metrics.duration.with_label_values(&by).observe(turn.took.0 / 1e3);
        let Some([input, output]) = turn.counted else {
            return;
        };
        if turn.streamed && output > 1 {
            let after_the_first = (turn.took - turn.ttft).0 / 1e3;
            metrics
                .per_output_token
                .with_label_values(&by)
                .observe(after_the_first / (output - 1) as f64);
        }
        for (kind, tokens) in [("input", input), ("output", output)] {
            metrics
                .tokens
                .with_label_values(&[turn.model, kind])
                .observe(tokens as f64);
        }
    }
}
