//! Configuration of a simulated engine.

use std::net::SocketAddr;

use policy::cache::Order as Eviction;
use policy::cost::PrefillCost;

/// The configuration of an [`crate::Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Address to listen on; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The one model served.
    pub model: String,
    /// Tokens per cache block.
    pub block_size: u32,
    /// Size of the key-value cache, in blocks.
    pub capacity_blocks: u64,
    /// Size of the host-memory tier for evicted blocks, in blocks; 0: none.
    pub host_blocks: u64,
    /// Virtual milliseconds to load a token from host memory.
    pub host_ms_per_token: f64,
    /// The eviction policy.
    pub cache_policy: CachePolicy,
    /// Cost of a prompt, in virtual milliseconds.
    pub prefill: PrefillCost,
    /// Random deviation of prefill times from their cost.
    pub jitter: Jitter,
    /// Time of a decode step with an empty batch, in virtual milliseconds.
    pub tpot_ms: f64,
    /// Time that each running sequence adds to a decode step, in virtual milliseconds.
    pub tpot_batch_ms: f64,
    /// Share by which each running sequence lengthens a prefill.
    pub decode_drag: f64,
    /// Virtual milliseconds per wall millisecond. Ratios between times are preserved.
    pub time_scale: f64,
    /// Whether to answer at once and cache nothing, for measuring a proxy in front of the engine.
    pub fast: bool,
    /// The order of the waiting queue.
    pub order: Order,
    /// Longest waiting queue; further requests get a 503.
    pub max_queued: usize,
    /// Data-parallel ranks: each has its own queue, cache and events behind the shared port.
    pub ranks: u32,
    /// Maximum number of sequences that decode at the same time.
    pub max_running: usize,
    /// Maximum number of tokens of prompt and reply together.
    pub max_model_len: u64,
    /// Longest request body in bytes; longer ones get a 413.
    pub max_body_bytes: usize,
    /// Tokens of a reply without a limit in the request, or at `/v1/messages` with a higher one.
    pub default_output_tokens: u32,
    /// Whether replies contain two-, three- and four-byte characters.
    pub multibyte: bool,
    /// Whether to report cached tokens in `usage`.
    pub cached_tokens_report: bool,
    /// Whether to report the cache size in `/metrics` and the capability document.
    pub tells_capacity: bool,
    /// Whether to add `metrics` to chat and plain completions, as vLLM's `--enable-per-request-metrics` does.
    pub per_request_metrics: bool,
    /// Whether to reject unknown body fields with 400.
    pub strict: bool,
    /// The dialect of cache hints.
    pub dialect: Dialect,
    /// Maximum number of sessions whose latest chain is kept for hints.
    pub max_sessions: usize,
    /// Settings of the published cache events; `None` publishes none.
    pub kv_events: Option<KvEventsConfig>,
    /// Whether to keep the latest requests, heads and bodies, for inspection by tests.
    pub capture: bool,
}

/// The eviction policy of an engine's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// Blocks marked by hints and objectives are evicted first, then others by this policy.
    Plain(Eviction),
    /// Tail-Optimized LRU with fixed parameters, in force until an objective is set.
    TLru {
        /// ξ: uncached tokens that fit in the objective.
        xi_tokens: u64,
        /// Q̂: tokens that the next prompt is expected to add.
        next_prompt_tokens: u64,
    },
}

impl Default for CachePolicy {
    fn default() -> Self {
        Self::Plain(Eviction::Lru)
    }
}

impl CachePolicy {
    /// Returns the policy's name on the command line and in the capability document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain(eviction) => eviction.as_str(),
            Self::TLru { .. } => "t-lru",
        }
    }
}

/// Settings of the published cache events.
#[derive(Clone, Debug)]
pub struct KvEventsConfig {
    /// Endpoint of the first rank's PUB socket, such as `tcp://127.0.0.1:0`; the other ranks take the following ports.
    pub endpoint: String,
    /// Endpoint of the replay ROUTER socket.
    pub replay_endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// Batches kept for replay and for a slow publisher.
    pub buffer: usize,
    /// The engine that the events imitate.
    pub style: EventStyle,
}

/// The engine whose cache events are imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EventStyle {
    /// vLLM: events name sessions, `/kv_event_sources` lists the publishers, lost events can be replayed.
    #[default]
    Vllm,
    /// SGLang: one block per event, signed hashes, no sessions, no replay; `/server_info` lists a port per rank.
    Sglang,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            replay_endpoint: "tcp://127.0.0.1:0".to_owned(),
            topic: "kv-events".to_owned(),
            buffer: 10_000,
            style: EventStyle::default(),
        }
    }
}

/// The order of the waiting queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// First come, first served; priorities are ignored.
    Fifo,
    /// The smallest `priority` first, then first come.
    Priority,
}

/// The dialect of cache hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// `/v1/tailroute/…` and the evict-first header.
    Tailroute,
    /// No hints: those routes answer 404 and the header is ignored.
    None,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            model: "sim".to_owned(),
            block_size: 16,
            capacity_blocks: 8192,
            host_blocks: 0,
            host_ms_per_token: 0.01,
            cache_policy: CachePolicy::default(),
            prefill: PrefillCost::linear(0.1, 20.0),
            jitter: Jitter::default(),
            tpot_ms: 20.0,
            tpot_batch_ms: 0.2,
            decode_drag: 0.0,
            time_scale: 1.0,
            fast: false,
            order: Order::Fifo,
            max_queued: 4096,
            ranks: 1,
            max_running: 256,
            max_model_len: 131_072,
            max_body_bytes: 32 << 20,
            default_output_tokens: 64,
            multibyte: false,
            cached_tokens_report: true,
            tells_capacity: true,
            per_request_metrics: false,
            strict: false,
            dialect: Dialect::Tailroute,
            max_sessions: 8192,
            kv_events: None,
            capture: false,
        }
    }
}

/// Random deviation of prefill times from their cost, as on real engines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Jitter {
    /// Standard deviation, as a share of the cost.
    pub share: f64,
    /// Share of prefills that stall, taking 2 to 10 times as long.
    pub stalls: f64,
    /// Seed of the random deviations.
    pub seed: u64,
}

/// The reason why a configuration is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field, as named on the command line.
    pub field: &'static str,
    /// The problem with the field's value.
    pub problem: &'static str,
}

impl EngineConfig {
    /// Returns the cache size in tokens.
    pub fn capacity_tokens(&self) -> u64 {
        self.capacity_blocks.saturating_mul(u64::from(self.block_size))
    }

    /// Checks the values. Fails at the first invalid one.
    pub fn check(&self) -> Result<(), ConfigError> {
        let times = [
            ("alpha-ms", self.prefill.alpha_ms_per_token),
            ("beta-ms", self.prefill.beta_ms),
            ("gamma-ms", self.prefill.gamma_ms_per_token2),
            ("tpot-ms", self.tpot_ms),
            ("tpot-batch-ms", self.tpot_batch_ms),
            ("jitter", self.jitter.share),
            ("decode-drag", self.decode_drag),
            ("host-ms", self.host_ms_per_token),
        ];
        for (field, value) in times {
            if !(value.is_finite() && value >= 0.0) {
                return Err(ConfigError {
                    field,
                    problem: "must be a finite number of at least 0",
                });
            }
        }
        if !(0.0..=1.0).contains(&self.jitter.stalls) {
            return Err(ConfigError {
                field: "stalls",
                problem: "must be a share from 0 to 1",
            });
        }
        if !(self.time_scale.is_finite() && self.time_scale > 0.0) {
            return Err(ConfigError {
                field: "time-scale",
                problem: "must be a finite number above 0",
            });
        }
        let counts = [
            ("block-size", u64::from(self.block_size)),
            ("ranks", u64::from(self.ranks)),
            ("max-running", self.max_running as u64),
            ("max-sessions", self.max_sessions as u64),
            ("default-output-tokens", u64::from(self.default_output_tokens)),
        ];
        match counts.into_iter().find(|&(_, value)| value == 0) {
            Some((field, _)) => Err(ConfigError {
                field,
                problem: "must be at least 1",
            }),
            None => Ok(()),
        }
    }
}
