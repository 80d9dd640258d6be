//! Control of the cache by clients: hints, the objective, and the cache terms of a request.

use std::sync::Arc;

/// The action of a cache hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintKind {
    /// Keep the first `keep_tokens`; the rest is evict-first.
    Trim,
    /// The conversation is over.
    Ended,
    /// The prefix is shared by many conversations: touch it and clear its marks.
    Protect,
}

/// One cache hint, as sent to `POST /v1/tailroute/hints`.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Hint {
    /// The action.
    pub kind: HintKind,
    /// The session to whose cache the hint applies.
    pub session_id: String,
    /// Leading tokens of the chain that stay (trim, ended; default 0) or are protected (default all).
    pub keep_tokens: Option<u64>,
    /// Hints of one session older than the newest seen are ignored.
    #[serde(default)]
    pub epoch: u64,
    /// Time to live in wall milliseconds; unlimited if absent.
    pub ttl_ms: Option<f64>,
}

/// `PUT /v1/tailroute/objective`: the T-LRU budget for requests without their own.
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct Objective {
    /// ξ: uncached tokens that fit in the time-to-first-token objective.
    pub xi_tokens: f64,
    /// Q̂: tokens that the next prompt is expected to add.
    pub next_prompt_tokens: f64,
    /// Objectives older than the newest seen are ignored.
    #[serde(default)]
    pub epoch: u64,
    /// Time to live in wall milliseconds, after which the cache is LRU again; unlimited if absent.
    pub ttl_ms: Option<f64>,
    /// Whether the cache evicts by T-LRU with this ξ; otherwise by hints and LRU alone.
    #[serde(default = "yes")]
    pub t_lru: bool,
    /// The time-to-first-token objective, for information.
    pub ttft_objective_ms: Option<f64>,
}

fn yes() -> bool {
    true
}

impl Objective {
    /// Creates an objective without a time to live.
    #[must_use]
    pub fn new(xi_tokens: f64, next_prompt_tokens: f64, epoch: u64) -> Self {
        Self {
            xi_tokens,
            next_prompt_tokens,
            epoch,
            ttl_ms: None,
            t_lru: true,
            ttft_objective_ms: None,
        }
    }
}

/// The outcome of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintOutcome {
    /// The hint was applied.
    Applied,
    /// The hint waits for the session's running turn.
    Pending,
    /// The hint's time to live had passed.
    Expired,
    /// A hint of this session with a newer epoch was received before.
    Stale,
    /// The session is unknown.
    Unknown,
}

/// The cache terms of a request.
#[derive(Clone, Debug, Default)]
pub struct CacheTerms {
    /// The client's session id.
    pub session: Option<Arc<str>>,
    /// The cache salt, which separates chains; contained in events.
    pub salt: Option<Arc<str>>,
    /// Tokens at the end of the finished turn that are evict-first (the in-request hint).
    pub evict_first_tail: Option<u64>,
}
