//! Workers: `[[workers]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A worker: an engine's OpenAI-compatible endpoint, its prefill cost and its cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct Worker {
    /// Name in metrics, logs and response headers. Default: the url's host and port (and base path).
    pub name: Option<String>,
    /// Base url, without `/v1`: the client's path is appended to it. `http`, or `https` with the settings of
    /// `[tls.workers]`.
    pub url: String,
    /// File with the API key that the worker requires (vLLM's and SGLang's `--api-key`), which the router sends in
    /// place of its clients'. Empty: none.
    pub api_key_file: String,
    /// α: milliseconds per uncached prompt token. `gpu-bench worker URL` measures it.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    pub alpha_ms_per_token: f64,
    /// β: milliseconds that every request takes before its first token, however short its prompt.
    #[schemars(range(min = 0, max = 1e9))]
    pub beta_ms: f64,
    /// γ: milliseconds per uncached token and token of context: the share of attention, which grows with history.
    #[schemars(range(min = 0, max = 1e6))]
    pub gamma_ms_per_token2: f64,
    /// Least milliseconds of a prompt, however short: on a GPU, reading the weights once. 0: none.
    #[schemars(range(min = 0, max = 1e9))]
    pub floor_ms: f64,
    /// File written by `gpu-bench worker URL`, with the measured α, β, γ and floor, in place of the four keys above.
    /// Relative to the router's working directory. Empty: none.
    pub calibration: String,
    /// Tokens that fit into the worker's prefix cache: its number of blocks times its block size. Default: the worker
    /// is queried (`GET /v1/tailroute`, `GET /server_info`, `GET /metrics`); without an answer the capacity begins at
    /// the default and is learned from responses.
    #[schemars(range(min = 1))]
    pub capacity_tokens: u64,
    /// Tokens per block of the worker's cache.
    #[schemars(range(min = 1, max = 65_536))]
    pub block_size_tokens: u32,
    /// Data-parallel ranks behind the url: each is a separate worker with this capacity, and requests are pinned to one
    /// (`X-data-parallel-rank`, `x-override-routed-dp-rank`). 1: the url is one worker, and requests are not pinned.
    #[schemars(range(min = 1, max = 64))]
    pub ranks: u32,
    /// Eviction policy of the worker's cache.
    pub cache_policy: CachePolicy,
    /// How hints are sent to the worker.
    pub dialect: Dialect,
    /// Whether requests carry `priority`, earliest `arrival + min(4 × predicted prefill, objective)` first. Only for an
    /// engine that runs with priority scheduling: others refuse the field. A client's own `priority` is kept.
    pub priority: Priority,
    /// Models that the worker serves. Default: the worker is queried (`GET /v1/models`).
    pub models: Option<Vec<String>>,
    /// Source of cache events: `auto` queries the worker (`GET /kv_event_sources`, `GET /server_info`), `off` disables
    /// them, `tcp://host:port` is the publisher itself (of rank 0; other ranks use the ports after it).
    pub kv_events: String,
    /// Address to replay lost events from, as `tcp://host:port`, where `kv_events` names the publisher. Empty: none.
    pub kv_events_replay: String,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            name: None,
            url: String::new(),
            api_key_file: String::new(),
            alpha_ms_per_token: 0.1,
            beta_ms: 20.0,
            gamma_ms_per_token2: 0.0,
            floor_ms: 0.0,
            calibration: String::new(),
            capacity_tokens: 500_000,
            block_size_tokens: 16,
            ranks: 1,
            cache_policy: CachePolicy::default(),
            dialect: Dialect::default(),
            priority: Priority::default(),
            models: None,
            kv_events: "auto".to_owned(),
            kv_events_replay: String::new(),
        }
    }
}

/// Eviction policy of a worker's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// As reported by the worker (`GET /v1/tailroute`, `GET /server_info`); `lru` without an answer.
    #[default]
    Auto,
    /// Least recently used first, after the blocks marked by hints.
    Lru,
    /// First the blocks that cannot help a turn meet its objective, with or without hints, then the least recently
    /// used.
    TLru,
    /// Least frequently used first.
    Lfu,
    /// Blocks used once first, then the least recently used.
    Slru,
    /// Oldest stored first.
    Fifo,
    /// Most recently used first.
    Mru,
    /// Latest stored first.
    Filo,
}

/// How hints are sent to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Detected by probing the worker.
    #[default]
    Auto,
    /// tailroute's own: `POST /v1/tailroute/hints`, `PUT /v1/tailroute/objective`, and a hint within each request.
    Tailroute,
    /// vLLM with the KV connector of `tailroute-vllm`: a hint within each request, and nothing else.
    VllmXargs,
    /// The `kv_hints` envelope, a body field. Built from its documents; no engine acts on it yet.
    KvHints,
    /// TensorRT-LLM's `kv_cache_retention_config`, as a body field. Built from its documents.
    TensorrtLlm,
    /// No hints.
    None,
}

/// Whether and how requests carry a priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// None.
    #[default]
    Off,
    /// The smallest number goes first: vLLM with `--scheduling-policy priority`, SGLang with
    /// `--enable-priority-scheduling --schedule-low-priority-values-first`.
    LowestFirst,
    /// The largest number goes first: SGLang with `--enable-priority-scheduling`.
    HighestFirst,
}
