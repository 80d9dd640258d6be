//! The workers: `[[workers]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One worker: an engine's OpenAI-compatible endpoint, what a prompt costs on it and how much cache it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct Worker {
    /// Name in metrics, logs and response headers. Left out, it is the url's host and port (and base path).
    pub name: Option<String>,
    /// Base url, without `/v1`: the client's path is appended to it. `http`, or `https` as `[tls.workers]` says.
    pub url: String,
    /// File with the API key that the worker asks for (vLLM's and SGLang's `--api-key`), which the router then sends in place
    /// of its clients'. Empty: none.
    pub api_key_file: String,
    /// α: milliseconds per uncached prompt token. `gpu-bench worker URL` measures it.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    pub alpha_ms_per_token: f64,
    /// β: milliseconds that every request costs before its first token, however short its prompt.
    #[schemars(range(min = 0, max = 1e9))]
    pub beta_ms: f64,
    /// γ: milliseconds per uncached token and token of context: the attention's share, which grows with history.
    #[schemars(range(min = 0, max = 1e6))]
    pub gamma_ms_per_token2: f64,
    /// Milliseconds that a prompt takes at the least, however short: on a GPU, reading the weights once. 0: none.
    #[schemars(range(min = 0, max = 1e9))]
    pub floor_ms: f64,
    /// File that `gpu-bench worker URL` wrote: α, β, γ and the floor as measured, in place of the four above. Relative to where the
    /// router is started. Empty: none.
    pub calibration: String,
    /// Tokens that fit into the worker's prefix cache: its number of blocks times its block size. Left out, the worker is asked
    /// (`GET /v1/tailroute`, `GET /server_info`, `GET /metrics`); one that does not say begins with the default, and its answers
    /// show the rest.
    #[schemars(range(min = 1))]
    pub capacity_tokens: u64,
    /// Tokens per block of the worker's cache.
    #[schemars(range(min = 1, max = 65_536))]
    pub block_size_tokens: u32,
    /// Data-parallel ranks behind the url: each is a worker of its own, with this capacity, and requests are pinned to
    /// one (`X-data-parallel-rank`, `x-override-routed-dp-rank`). 1: the url is one worker, and nothing is pinned.
    #[schemars(range(min = 1, max = 64))]
    pub ranks: u32,
    /// What the worker drops first when its cache is full.
    pub cache_policy: CachePolicy,
    /// How the worker is told which cache it may drop first.
    pub dialect: Dialect,
    /// Whether requests carry `priority`, earliest `arrival + min(4 × predicted prefill, objective)` first. Only for an
    /// engine that runs with priority scheduling: others refuse the field. A client's own `priority` stays.
    pub priority: Priority,
    /// Models that it serves. Left out, the worker is asked (`GET /v1/models`).
    pub models: Option<Vec<String>>,
    /// Its cache's events: `auto` asks it where they are (`GET /kv_event_sources`, `GET /server_info`), `off` takes none,
    /// `tcp://host:port` is the publisher itself (of rank 0; the others follow on the ports after it).
    pub kv_events: String,
    /// Where lost events are asked for again, as `tcp://host:port`, beside a `kv_events` that names the publisher. Empty:
    /// nowhere.
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

/// What a worker's cache drops first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// What the worker says when it is asked (`GET /v1/tailroute`, `GET /server_info`); `lru` if it does not.
    #[default]
    Auto,
    /// The least recently used blocks, after those that hints have marked.
    Lru,
    /// The blocks that cannot help a turn meet its objective, whether or not it is told which, then the least recently used.
    TLru,
    /// The least often used.
    Lfu,
    /// Those that were used once, then the least recently used.
    Slru,
    /// Those that were stored first.
    Fifo,
    /// The most recently used.
    Mru,
    /// Those that were stored last.
    Filo,
}

/// How hints are carried to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// What the worker shows that it takes when it is asked.
    #[default]
    Auto,
    /// tailroute's own: `POST /v1/tailroute/hints`, `PUT /v1/tailroute/objective`, and a hint within each request.
    Tailroute,
    /// vLLM with the KV connector of `tailroute-vllm`: a hint within each request, and nothing else.
    VllmXargs,
    /// The `kv_hints` envelope, a body field. Built to its documents; no engine acts on it yet.
    KvHints,
    /// TensorRT-LLM's `kv_cache_retention_config`, as a body field. Built to its documents.
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
