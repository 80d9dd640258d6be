//! What workers are told of clients, and which paths are theirs to ask for: `[http]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP between clients and workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// What workers are told of who asks (`Forwarded`, `X-Forwarded-For`, `-Proto`, `-Host`).
    pub forwarded: Forwarded,
    /// Addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) of the proxies whose word on that is taken.
    pub trusted_proxies: Vec<String>,
    /// Paths, with all below them, that are passed on although they are of no API that the router knows. Anything else
    /// outside `/v1/` is answered 404: engines have paths there that empty caches and load weights.
    pub extra_paths: Vec<String>,
    /// Whether a client's request may steer an engine from within: say where keys and values are fetched from, or which rank
    /// computes it (`kv_transfer_params`, `bootstrap_host`, `disaggregated_params`, `data_parallel_rank` and their like, in
    /// bodies and heads). Otherwise it is answered 400. Such a request can end an engine, or have it connect to any host.
    pub transfer_fields: bool,
    /// Seconds that a WebSocket may be silent, in both directions, before it is closed.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub tunnel_idle_timeout_s: f64,
}

/// What workers are told of who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forwarded {
    /// What a trusted proxy says, and that proxy; of anybody else, only what the router sees itself.
    #[default]
    Append,
    /// Only what the router sees itself.
    Replace,
    /// Nothing.
    Off,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            forwarded: Forwarded::Append,
            trusted_proxies: Vec::new(),
            extra_paths: Vec::new(),
            transfer_fields: false,
            tunnel_idle_timeout_s: 300.0,
        }
    }
}
