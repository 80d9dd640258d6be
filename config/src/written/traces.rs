//! Traces: `[traces]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Traces of requests, with a span for each stage, sent by OTLP. Whether one is kept is decided when it has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Base url of an OTLP collector, as in `http://127.0.0.1:4317`. Empty: no traces.
    pub endpoint: String,
    /// OTLP protocol of the collector.
    pub protocol: OtlpProtocol,
    /// Root certificates (PEM) for an `https` collector. Empty: the system's roots.
    pub ca_file: String,
    /// File with headers for the collector, one per line, as in `authorization: Bearer …`. Read again when it changes.
    /// Empty: none.
    pub headers_file: String,
    /// `service.name` of the traces.
    pub service_name: String,
    /// Whether to keep a trace that its client marked by the sampled flag of `traceparent`.
    pub keep_sampled: bool,
    /// Share of turns to keep for having the longest recent times to first token.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slowest_share: f64,
    /// Share to keep of all other traces: no error, no missed objective, not among the slowest.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Traces queued for sending; further ones are dropped, and counted.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Seconds for the collector to accept a batch.
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

/// OTLP protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// gRPC: port 4317 of most collectors.
    #[default]
    Grpc,
    /// Protobuf over HTTP, at `/v1/traces` below the endpoint: port 4318 of most collectors.
    Http,
}
