//! Where traces go: `[traces]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Traces of requests, a span for each stage, sent by OTLP. Which of them are kept is decided when they have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Base url of a collector that takes OTLP, as in `http://127.0.0.1:4317`. Empty: nothing is traced.
    pub endpoint: String,
    /// How it takes it.
    pub protocol: OtlpProtocol,
    /// Certificates (PEM) that an `https` collector's has to lead to, in place of the machine's own roots. Empty: those.
    pub ca_file: String,
    /// File with headers that the collector asks for, one a line, as in `authorization: Bearer …`. Read again when it
    /// changes. Empty: none.
    pub headers_file: String,
    /// `service.name` of what is sent.
    pub service_name: String,
    /// Whether a trace is kept that a client asked to be recorded, by the sampled flag of its `traceparent`.
    pub keep_sampled: bool,
    /// Share of turns that are kept because none of late had a longer time to first token.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slowest_share: f64,
    /// Share that is kept of all that nothing speaks for: no error, no missed objective, not among the slowest.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Traces that may wait to be sent; what ends when so many wait is dropped, and counted.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Seconds that the collector has to take a batch.
    #[schemars(range(min = 0.1, max = 300))]
    pub timeout_s: f64,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            protocol: OtlpProtocol::default(),
            ca_file: String::new(),
            headers_file: String::new(),
            service_name: "tailroute".to_owned(),
            keep_sampled: true,
            slowest_share: 0.01,
            share: 0.01,
            queue: 1_000,
            timeout_s: 10.0,
        }
    }
}

/// How OTLP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// gRPC: port 4317 of most collectors.
    #[default]
    Grpc,
    /// Protobuf over HTTP, at `/v1/traces` below the endpoint: port 4318 of most collectors.
    Http,
}
