//! The facts that checks judge.

use serde::Deserialize;
use serde_json::Value;

use super::stream_probe::StreamError;

/// All facts about a router and its fleet.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Host and port of the admin port.
    pub router: String,
    /// The workers, in the router's order.
    pub(super) workers: Vec<WorkerFacts>,
    /// The newest turns that have ended, late or not.
    pub(super) turns: Vec<DecisionFacts>,
    /// The objective of turns without a class.
    pub(super) objective_ms: Option<f64>,
    /// Paths that the admin port did not answer, each with the error.
    pub(super) unread: Vec<(&'static str, String)>,
    pub(super) configuration: ConfigurationFacts,
    pub(super) replicas: ReplicasFacts,
    pub(super) discovery: Vec<SourceFacts>,
    pub(super) metrics: Option<String>,
    /// Prompt tokens by their state in caches; `None` for an older router.
    pub(super) hits: Option<HitFacts>,
    /// Overload of the fleet, while it lasts.
    pub(super) overload: Option<Overload>,
    /// The router's clock less this machine's.
    pub(super) clock: Option<Offset>,
    /// Milliseconds since 1970, by this machine's clock.
    pub(super) now_unix_ms: f64,
    /// Outcome of the stream through the clients' URL, if one was given.
    pub(super) stream: Option<Result<Stream, StreamError>>,
}

impl Facts {
    /// Returns the cached tokens that a worker's responses to turns report, in total. `None` if none reports them.
    pub(super) fn shown_by(&self, worker: &str) -> Option<CachedTokenReports> {
        let turns = self.turns.iter().filter(|turn| turn.worker == worker);
        let reports = turns.filter_map(|turn| Some((turn.prompt_tokens(), turn.reported_cached?)));
        reports.fold(None, |shown, (prompt, cached)| {
            let CachedTokenReports {
                turns,
                prompt_tokens,
                cached_tokens,
            } = shown.unwrap_or_default();
            Some(CachedTokenReports {
                turns: turns + 1,
                prompt_tokens: prompt_tokens.saturating_add(prompt),
                cached_tokens: cached_tokens.saturating_add(cached),
            })
        })
    }
}

/// The router's report of overload.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Overload {
    pub(super) workers_ready: usize,
    pub(super) workers_over: usize,
    pub(super) wait_ms: f64,
    pub(super) objective_ms: f64,
    pub(super) late: u64,
    pub(super) refused: u64,
}

/// Reports of cached tokens in a worker's answers to turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CachedTokenReports {
    pub(super) turns: usize,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
}

impl CachedTokenReports {
    /// Returns whether any turn found a part of its prompt.
    pub(super) fn caches_prefixes(self) -> bool {
        self.cached_tokens > 0
    }
}

/// A worker, as the admin port describes it. Fields that an older router lacks are `None`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WorkerFacts {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) state: String,
    pub(super) breaker: String,
    pub(super) in_flight: u32,
    pub(super) wait_ms: f64,
    pub(super) cost: CostFacts,
    pub(super) alpha_set: Option<Value>,
    pub(super) slow: Option<Slow>,
    pub(super) capacity_tokens: u64,
    pub(super) events_live: bool,
    pub(super) dialect: String,
    pub(super) models: Vec<String>,
    pub(super) last_error: Option<String>,
    pub(super) since_unix_ms: Option<f64>,
    pub(super) rank: Option<u32>,
    pub(super) capacity_source: Option<String>,
    pub(super) cost_source: Option<String>,
    pub(super) cost_answers: Option<u64>,
    pub(super) cached_tokens_reported: Option<bool>,
    pub(super) events_source: Option<String>,
    pub(super) events_stored: Option<u64>,
    pub(super) ready_since_unix_ms: Option<f64>,
    pub(super) foreign_requests: Option<u32>,
    /// Facts that the router knows about the worker's engine.
    #[serde(default)]
    pub(super) facts: Vec<EngineFact>,
    /// Facts read from the worker itself.
    #[serde(skip)]
    pub(super) direct: Direct,
}

impl WorkerFacts {
    pub(super) fn is_up(&self) -> bool {
        !matches!(self.state.as_str(), "unwell" | "starting")
    }
}

/// A fact about a worker's engine.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct EngineFact {
    pub(super) fact: String,
    pub(super) value: Option<String>,
    pub(super) error: Option<String>,
    pub(super) failing_for_s: Option<f64>,
}

/// The figures of a slow worker.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Slow {
    pub(super) factor: f64,
    pub(super) against: String,
    pub(super) typical_prompt_ms: f64,
    pub(super) baseline_typical_prompt_ms: f64,
}

/// Prefill cost in force.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct CostFacts {
    pub(super) alpha_ms_per_token: f64,
    pub(super) beta_ms: f64,
    pub(super) gamma_ms_per_token2: f64,
    pub(super) floor_ms: f64,
    pub(super) overhead_ms: f64,
}

/// Prompt tokens: all, those that some ready worker held (available), the chosen one (captured), and those found cached
/// (delivered).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct HitFacts {
    pub(super) prompt_tokens: u64,
    pub(super) available_tokens: u64,
    pub(super) captured_tokens: u64,
    pub(super) delivered_tokens: u64,
    pub(super) verdict: String,
}

#[derive(Clone, Debug)]
pub(super) struct DecisionFacts {
    pub(super) worker: String,
    pub(super) objective_ms: f64,
    pub(super) uncached_tokens: u64,
    pub(super) cached_tokens: u64,
    /// Cached tokens that the answer itself reports.
    pub(super) reported_cached: Option<u64>,
    pub(super) is_late: bool,
    pub(super) arrived_unix_ms: f64,
}

impl DecisionFacts {
    pub(super) fn prompt_tokens(&self) -> u64 {
        self.uncached_tokens.saturating_add(self.cached_tokens)
    }

    /// Reads a turn from a decision. `None` if the turn has no complete answer.
    pub(super) fn of(decision: &Value) -> Option<Self> {
        let outcome = &decision["outcome"];
        let prompt = outcome["prompt_tokens"].as_u64()?;
        let predicted = || decision["terms"][0]["cached_tokens"].as_u64();
        let reported = outcome["cached_tokens"].as_u64().map(|cached| cached.min(prompt));
        let cached = reported.or_else(predicted)?.min(prompt);
        Some(Self {
            worker: decision["worker"].as_str()?.to_owned(),
            objective_ms: decision["objective_ms"].as_f64()?,
            uncached_tokens: prompt - cached,
            cached_tokens: cached,
            reported_cached: reported,
            is_late: outcome["met"] == false,
            arrived_unix_ms: decision["arrived_unix_ms"].as_f64().unwrap_or(0.0),
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ConfigurationFacts {
    pub(super) refused: Option<String>,
    #[serde(default)]
    pub(super) needs_restart: Vec<String>,
    pub(super) started_unix_ms: Option<f64>,
    pub(super) listen: Option<String>,
    pub(super) keys_required: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ReplicasFacts {
    #[serde(default)]
    pub(super) configured: bool,
    #[serde(default)]
    pub(super) connected: bool,
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) peers: Vec<Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SourceFacts {
    pub(super) source: String,
    pub(super) of: String,
    pub(super) failure: Option<SourceFailure>,
    pub(super) named: usize,
}

/// Current failure of a source.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SourceFailure {
    pub(super) what: String,
}

/// A clock less this machine's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offset {
    pub(super) ms: f64,
    /// Largest error, from the resolution of the header and the time of the request.
    pub(super) error_ms: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Engine {
    Vllm,
    Sglang,
    #[default]
    Other,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Direct {
    /// Error with which the worker cannot be reached from this machine.
    pub(super) unreachable: Option<String>,
    pub(super) engine: Engine,
    pub(super) clock: Option<Offset>,
    pub(super) started_unix_ms: Option<f64>,
    pub(super) capacity_tokens: Option<u64>,
    /// Whether the worker's own settings switch prefix caching on.
    pub(super) caches_prefixes: Option<bool>,
    /// Whether the worker's own settings switch reports of cached tokens on.
    pub(super) reports_cached_tokens: Option<bool>,
    /// Whether the worker names a publisher of cache events.
    pub(super) names_publisher: Option<bool>,
    /// Outcome of the two prompts; `None` if they were not sent.
    pub(super) prompts: Option<Result<[Prompt; 2], String>>,
}

impl Direct {
    /// Keeps the latest of several readings, since a busy server may repeat an old `Date`.
    pub(super) fn see_clock(&mut self, reading: Option<Offset>) {
        let later = |reading: &Offset| self.clock.is_none_or(|clock| reading.ms > clock.ms);
        self.clock = reading.filter(later).or(self.clock);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prompt {
    pub(super) took_ms: f64,
    pub(super) prompt_tokens: u64,
    /// Cached prompt tokens; `None` if not reported.
    pub(super) cached_tokens: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stream {
    pub(super) pieces: usize,
    /// Number of moments at which content arrived.
    pub(super) moments: usize,
    /// Time from the first piece to the last.
    pub(super) spread_ms: f64,
    pub(super) took_ms: f64,
    /// The server and the proxies that the response names.
    pub(super) named: Option<String>,
}
