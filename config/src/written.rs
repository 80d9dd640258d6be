//! The file as it is written: plain strings and numbers, a unit in every key's name that needs one.
//!
//! The doc comment of a key is its description in the schema and in the reference, so it is written for operators.

use policy::route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of tailroute: where it listens, the workers it routes to, and how it chooses between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The data port: serves the OpenAI API and nothing else.
    pub server: Server,
    /// The admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: Admin,
    /// The inference workers, one section each. At least one, here or in the environment or on the command line.
    pub workers: Vec<Worker>,
    /// How a worker is chosen for a turn.
    pub routing: Routing,
    /// The time to first token to be met, and for which share of turns.
    pub objective: Objective,
    /// What workers are told about the cache they may drop first.
    pub hints: Hints,
    /// What the router learns from answers while it serves.
    pub learning: Learning,
    /// The index of which worker holds which prefix.
    pub index: Index,
    /// The probes that find out whether a worker can be sent requests.
    pub health: Health,
    /// Bounds on sizes, times and numbers. Nothing that grows is without one.
    pub limits: Limits,
    /// A capture of the traffic, for `tailroute replay`.
    pub capture: Capture,
    /// The log, on standard error.
    pub log: Log,
}

/// The data port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address and port that clients connect to. `0.0.0.0:8080` serves every interface.
    pub listen: String,
}

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port of metrics and administration.
    pub listen: String,
}

/// One worker: an engine's OpenAI-compatible endpoint, what a prompt costs on it and how much cache it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct Worker {
    /// Name in metrics, logs and response headers. Left out, it is the url's host and port (and base path).
    pub name: Option<String>,
    /// Base url, without `/v1`: the client's path is appended to it. Only `http` for now.
    pub url: String,
    /// α: milliseconds per uncached prompt token. `gpu-bench worker URL` measures it.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    pub alpha_ms_per_token: f64,
    /// β: milliseconds that every request costs before its first token, however short its prompt.
    #[schemars(range(min = 0, max = 1e9))]
    pub beta_ms: f64,
    /// γ: milliseconds per uncached token and token of context: the attention's share, which grows with history.
    #[schemars(range(min = 0, max = 1e6))]
    pub gamma_ms_per_token2: f64,
    /// File that `gpu-bench worker URL` wrote: α, β and γ as measured, in place of the three above. Relative to where the
    /// router is started. Empty: none.
    pub calibration: String,
    /// Tokens that fit into the worker's prefix cache: its number of blocks times its block size.
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

/// How a worker is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// The rule: `tail` minimises predicted time to first token plus the load that a miss causes; the others are the
    /// field's rules, for comparison.
    #[schemars(with = "String", extend("enum" = route::PolicyName::ALL))]
    pub policy: route::PolicyName,
    /// Upper bound of κ = 1 + ρ/(1 − ρ), the factor by which a busy worker is charged for a miss.
    #[schemars(range(min = 1, max = 1e6))]
    pub kappa_max: f64,
    /// Window, in seconds, over which a worker's utilisation ρ is measured.
    #[schemars(range(min = 0.1, max = 86_400))]
    pub utilisation_window_s: f64,
    /// Tokens per byte of text that a model is assumed to have until its answers have shown the real ratio.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 4))]
    pub tokens_per_byte: f64,
    /// Weights of the `tail` rule. The defaults make the plain formula.
    pub weights: Weights,
    /// Thresholds of the `cache_aware` rule.
    pub cache_aware: CacheAware,
}

/// Weights of the `tail` rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Multiplies κ's excess over 1: how much a miss is charged for the load that it causes.
    #[schemars(range(min = 0, max = 1e6))]
    pub locality: f64,
    /// Multiplies what it costs a conversation to live among many: a mean prefill times the worker's share of turns and
    /// of tokens.
    #[schemars(range(min = 0, max = 1e6))]
    pub home: f64,
    /// Multiplies the predicted wait.
    #[schemars(range(min = 0, max = 1e6))]
    pub load: f64,
    /// Extra cost per millisecond predicted beyond the objective.
    #[schemars(range(min = 0, max = 1e6))]
    pub slo: f64,
    /// Milliseconds of credit for the conversation's last worker.
    #[schemars(range(min = 0, max = 1e9))]
    pub affinity_ms: f64,
    /// Milliseconds of random tie-breaking.
    #[schemars(range(min = 0, max = 1e9))]
    pub spread_ms: f64,
}

/// Thresholds of the `cache_aware` rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAware {
    /// Share of the prompt that a worker must hold to be chosen for it.
    #[schemars(range(min = 0, max = 1))]
    pub match_threshold: f64,
    /// Out of balance if the busiest worker has more than this many requests above the idlest …
    pub imbalance_abs: u32,
    /// … and more than this many times the idlest one's requests.
    #[schemars(range(min = 1, max = 1e6))]
    pub imbalance_rel: f64,
}

/// The objective: a share of turns whose first token comes within a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Time to first token to be met, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Share of turns that has to meet it.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub share: f64,
    /// Q̂: tokens that a conversation's next prompt is expected to add, until answers have shown it.
    pub next_prompt_tokens: u64,
    /// Classes of turns with an objective of their own. A turn's own `x-slo-ttft-ms` (or `x-llm-d-slo-ttft-ms`) header,
    /// in milliseconds, comes before its class.
    pub classes: Vec<Class>,
}

/// A class of turns with an objective of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "ttft_ms"]))]
pub struct Class {
    /// Its name: a turn is of it whose `x-slo-class` header says so.
    pub name: String,
    /// Time to first token to be met, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Models whose turns are of this class if they name none.
    pub models: Vec<String>,
}

/// What is learned while the router serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    /// Whether each worker's α, β and γ follow what its answers take. Off: as configured, for ever.
    pub costs: bool,
    /// Seconds after which what was learned of a worker that no longer answers has gone half way back to where it began:
    /// one that was slow is tried again.
    #[schemars(range(min = 1, max = 604_800))]
    pub fade_s: f64,
    /// Whether next prompts, answers and returns of conversations are expected as each class of traffic shows them. Off:
    /// `objective.next_prompt_tokens`.
    pub habits: bool,
    /// Whether the share of the free tail that workers may drop follows what it is measured to do. Off: all of it while
    /// the load is low.
    pub xi: bool,
}

/// What workers are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hints {
    /// Whether any hint is sent at all.
    pub enabled: bool,
    /// Seconds after which a worker forgets a hint.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub ttl_s: f64,
    /// Whether a request carries the hint about its own conversation.
    pub in_request: bool,
    /// Whether hints are sent beside the requests: trims, ends and moves of conversations, protection of shared prefixes.
    pub out_of_band: bool,
    /// A silent conversation is taken to be over when the probability that it comes back is below this. 0: only if its
    /// client says so.
    #[schemars(range(min = 0, max = 0.5))]
    pub ended_below: f64,
    /// Conversations that begin alike from which on the beginning is protected on the workers that hold it. 0: never.
    #[schemars(range(max = 1_000_000))]
    pub protect_from: u32,
}

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Index {
    /// Memory that it may take, in bytes. Beyond it the least recently used prefixes are forgotten.
    #[schemars(range(min = 4_194_304))]
    pub max_bytes: u64,
    /// File in which what was learned outlives a restart of the router. Empty: nothing does.
    pub snapshot_path: String,
    /// Seconds between two snapshots; one more is written when the router is told to stop.
    #[schemars(range(min = 0.1, max = 604_800))]
    pub snapshot_interval_s: f64,
    /// Seconds after which a snapshot is too old to be read: workers' caches have moved on.
    #[schemars(range(min = 0, max = 604_800))]
    pub snapshot_max_age_s: f64,
}

/// Probes of the workers' health.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Milliseconds between two probes of a worker.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub interval_ms: f64,
    /// Milliseconds after which an unanswered probe has failed. At most the interval.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub timeout_ms: f64,
    /// Failed probes in a row that take a worker out of rotation.
    #[schemars(range(min = 1))]
    pub unhealthy_after: u32,
    /// Good probes in a row that bring it back.
    #[schemars(range(min = 1))]
    pub healthy_after: u32,
    /// Path of the probe, below the worker's url. Any 2xx answer is good.
    pub path: String,
    /// Milliseconds between two looks at a worker's own queue (`/metrics`, SGLang's `/v1/loads`), which correct the
    /// predicted wait. 0: never.
    #[schemars(range(min = 0, max = 3_600_000))]
    pub queue_interval_ms: f64,
}

/// Bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body; a longer one is answered 413.
    #[schemars(range(min = 1_024))]
    pub max_body_bytes: u64,
    /// Bytes of a request's head; a longer one is answered 431.
    #[schemars(range(min = 8_192, max = 16_777_216))]
    pub max_header_bytes: u64,
    /// Seconds that a client may take to send a request's head.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub header_timeout_s: f64,
    /// Seconds that a client may take to send a request's body; a slower one is answered 408.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub body_timeout_s: f64,
    /// Seconds that a connection to a worker may take to come up.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub connect_timeout_s: f64,
    /// Seconds that a worker may take, all in all, until the head of its answer is there; then 504.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub first_byte_timeout_s: f64,
    /// Seconds that a stream may be silent before it is given up.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub idle_timeout_s: f64,
    /// Open client connections; beyond it new ones wait to be accepted.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Requests in flight; beyond it new ones are answered 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: u32,
    /// Seconds that requests in flight are given to end when the router is told to stop.
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout_s: f64,
    /// Other workers that are tried when one fails before it can have started on the request.
    #[schemars(range(max = 16))]
    pub retries: u32,
}

/// A capture: one line per answered turn, with times, lengths and which prompts begin alike. No text, and no hash of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Capture {
    /// File that turns are written to; the one before it becomes `PATH.1`. Empty: nothing is captured.
    pub path: String,
    /// Bytes at which the file is full and a new one begins. Two of them are the most that a capture takes.
    #[schemars(range(min = 65_536))]
    pub max_bytes: u64,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The form of a line.
    pub format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as `info,tailroute=debug`.
    pub level: String,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9090".to_owned(),
        }
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            name: None,
            url: String::new(),
            alpha_ms_per_token: 0.1,
            beta_ms: 20.0,
            gamma_ms_per_token2: 0.0,
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

impl Default for Routing {
    fn default() -> Self {
        let route::Settings {
            policy, kappa_max, ..
        } = route::Settings::default();
        Self {
            policy,
            kappa_max,
            utilisation_window_s: 60.0,
            tokens_per_byte: 0.25,
            weights: Weights::default(),
            cache_aware: CacheAware::default(),
        }
    }
}

impl Default for Weights {
    fn default() -> Self {
        let route::Weights {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        } = route::Weights::default();
        Self {
            locality,
            home,
            load,
            slo,
            affinity_ms,
            spread_ms,
        }
    }
}

impl Default for CacheAware {
    fn default() -> Self {
        let route::CacheAware {
            match_threshold,
            imbalance_abs,
            imbalance_rel,
        } = route::CacheAware::default();
        Self {
            match_threshold,
            imbalance_abs,
            imbalance_rel,
        }
    }
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            ttft_ms: 500.0,
            share: 0.95,
            next_prompt_tokens: 200,
            classes: Vec::new(),
        }
    }
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            costs: true,
            fade_s: 60.0,
            habits: true,
            xi: true,
        }
    }
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            enabled: true,
            ttl_s: 600.0,
            in_request: true,
            out_of_band: true,
            ended_below: 0.02,
            protect_from: 8,
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            snapshot_path: String::new(),
            snapshot_interval_s: 60.0,
            snapshot_max_age_s: 600.0,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self {
            interval_ms: 2_000.0,
            timeout_ms: 1_000.0,
            unhealthy_after: 3,
            healthy_after: 2,
            path: "/health".to_owned(),
            queue_interval_ms: 1_000.0,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            max_header_bytes: 64 << 10,
            header_timeout_s: 10.0,
            body_timeout_s: 60.0,
            connect_timeout_s: 2.0,
            first_byte_timeout_s: 600.0,
            idle_timeout_s: 120.0,
            max_connections: 10_000,
            max_in_flight: 4_096,
            drain_timeout_s: 130.0,
            retries: 2,
        }
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            path: String::new(),
            max_bytes: 256 << 20,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::default(),
            level: "info".to_owned(),
        }
    }
}
