//! How engines differ: what their caches drop first, how they are told of it, and what a priority is to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
