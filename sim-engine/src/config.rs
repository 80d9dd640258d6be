//! What an engine is like.

use std::net::SocketAddr;

use policy::cache::Order as Eviction;
use policy::cost::PrefillCost;

/// Everything that an [`crate::Engine`] can be told when it starts.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The one model served.
    pub model: String,
    /// Tokens per cache block.
    pub block_size: u32,
    /// Room for key-value cache, in blocks.
    pub capacity_blocks: u64,
    /// Room for what the cache drops, in blocks of the host's memory; 0: none.
    pub host_blocks: u64,
    /// Virtual milliseconds to load a token from there.
    pub host_ms_per_token: f64,
    /// What the cache drops first.
    pub cache_policy: CachePolicy,
    /// What a prompt costs, in virtual milliseconds.
    pub prefill: PrefillCost,
    /// By how much prefills differ from what they cost.
    pub jitter: Jitter,
    /// A decode step with an empty batch, in virtual milliseconds.
    pub tpot_ms: f64,
    /// What each running sequence adds to a decode step, in virtual milliseconds.
    pub tpot_batch_ms: f64,
    /// By which share each running sequence makes a prefill longer.
    pub decode_drag: f64,
    /// Virtual milliseconds per wall millisecond. Ratios between times stay what they are.
    pub time_scale: f64,
    /// Answer at once and cache nothing: for measuring what is in front of the engine.
    pub fast: bool,
    /// The order of the waiting queue.
    pub order: Order,
    /// Waiting requests beyond which the engine answers 503.
    pub max_queued: usize,
    /// Data-parallel ranks: each has a queue, a cache and events of its own behind the one port.
    pub ranks: u32,
    /// Sequences that may decode at once.
    pub max_running: usize,
    /// Prompt and reply together, in tokens.
    pub max_model_len: u64,
    /// Larger bodies are answered 413.
    pub max_body_bytes: usize,
    /// Tokens of a reply whose request names no limit.
    pub default_output_tokens: u32,
    /// Replies contain two-, three- and four-byte characters.
    pub multibyte: bool,
    /// Report cached tokens in `usage`.
    pub cached_tokens_report: bool,
    /// Say how much the cache holds, in `/metrics` and the capability document.
    pub tells_capacity: bool,
    /// Add `metrics` to replies, as vLLM's `--enable-per-request-metrics`.
    pub per_request_metrics: bool,
    /// Refuse unknown body fields with 400.
    pub strict: bool,
    /// Which cache hints are understood.
    pub dialect: Dialect,
    /// Sessions whose last chain is remembered for hints.
    pub max_sessions: usize,
    /// Publish cache events.
    pub kv_events: Option<KvEventsConfig>,
    /// Keep the last requests, heads and bodies, for tests to look at.
    pub capture: bool,
}

/// What an engine's cache drops first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// What hints and objectives mark, then this.
    Plain(Eviction),
    /// Tail-Optimized LRU with numbers of its own, in force until an objective comes.
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
    /// Its name on the command line and in the capability document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain(eviction) => eviction.as_str(),
            Self::TLru { .. } => "t-lru",
        }
    }
}

/// Where cache events go.
#[derive(Clone, Debug)]
pub struct KvEventsConfig {
    /// Where the PUB socket of the first rank binds, as `tcp://127.0.0.1:0`; the others take the ports after it.
    pub endpoint: String,
    /// Where the replay ROUTER socket binds.
    pub replay_endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// Batches kept for replay and for a publisher that falls behind.
    pub buffer: usize,
    /// Whose events they look like.
    pub style: EventStyle,
}

/// Whose cache events an engine's look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EventStyle {
    /// vLLM's: they name sessions; `/kv_event_sources` says where they are; lost ones are replayed.
    #[default]
    Vllm,
    /// SGLang's: a block an event, signed hashes, no sessions; `/server_info` names a port for each rank; no replay.
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

/// Which request is prefilled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// First come, first served; priorities are ignored.
    Fifo,
    /// The smallest `priority` first, then first come.
    Priority,
}

/// Which cache hints an engine understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// `/v1/tailroute/…` and the evict-first header.
    Tailroute,
    /// None: those routes answer 404 and the header is ignored.
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

/// By how much prefills differ from what they cost, as real ones do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Jitter {
    /// Standard deviation, as a share of the cost.
    pub share: f64,
    /// Share of prefills that take 2 to 10 times as long: a stall.
    pub stalls: f64,
    /// Decides which.
    pub seed: u64,
}

/// Why a configuration cannot run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field as it is named on the command line.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl EngineConfig {
    /// Room for cache in tokens.
    #[must_use]
    pub fn capacity_tokens(&self) -> u64 {
        self.capacity_blocks.saturating_mul(u64::from(self.block_size))
    }

    /// Checks what types cannot.
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
