//! Engines' eviction orders, hint dialects and directions of priority.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Eviction policy of a worker's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CachePolicy {
    /// As reported by the worker (`GET /v1/tailroute`, `GET /server_info`); `lru` without an answer.
    #[default]
    Auto,
    /// Least recently used first, after the blocks marked by hints.
    Lru,
    /// Blocks that cannot help a turn meet its objective first, with or without hints, then the least recently used.
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

/// Form in which hints are sent to a worker.
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
    /// Requests carry no priority of the router.
    #[default]
    Off,
    /// The smallest number goes first: vLLM with `--scheduling-policy priority`, SGLang with
    /// `--enable-priority-scheduling --schedule-low-priority-values-first`.
    LowestFirst,
    /// The largest number goes first: SGLang with `--enable-priority-scheduling`.
    HighestFirst,
}
