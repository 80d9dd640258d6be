//! HTTP between clients and workers: `[http]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP between clients and workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Client information that is forwarded to workers (`Forwarded`, `X-Forwarded-For`, `-Proto`, `-Host`).
    pub forwarded: Forwarded,
    /// Addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) of the proxies whose forwarded information is trusted.
    pub trusted_proxies: Vec<String>,
    /// Additional paths to forward, with all paths below them. Any other unknown path outside `/v1/` is answered 404:
    /// engines have paths that empty caches and load weights.
    pub extra_paths: Vec<String>,
    /// Whether clients may set fields that control an engine's internals: where keys and values are fetched from, or
    /// which rank computes the request (`kv_transfer_params`, `bootstrap_host`, `disaggregated_params`,
    /// `data_parallel_rank` and similar, in bodies and headers). Otherwise such a request is answered 400. It can crash
    /// an engine, or have it connect to any host.
    pub transfer_fields: bool,
    /// Seconds that a WebSocket may be silent, in both directions, before it is closed.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub tunnel_idle_timeout_s: f64,
}

/// Client information that is forwarded to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forwarded {
    /// For trusted proxies, their information and address; for other clients, only what the router observes.
    #[default]
    Append,
    /// Only what the router observes.
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
