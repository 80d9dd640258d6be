//! Metrics of turns under the names of OpenTelemetry's semantic conventions for generative AI.

use policy::units::Millis;

use super::Metrics;
use super::labelled::{Histogram, Labelled};
use super::registrar::{MetricError, Registrar};
use telemetry::context::TraceId;

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
            ttft: metrics.histogram("gen_ai_server_time_to_first_token_seconds")?,
            per_output_token: metrics.histogram("gen_ai_server_time_per_output_token_seconds")?,
            duration: metrics.histogram("gen_ai_server_request_duration_seconds")?,
            tokens: metrics.histogram("gen_ai_client_token_usage")?,
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
