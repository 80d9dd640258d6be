//! The workers, `[[workers]]`: checks urls, and that names and urls are unique.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use http::Uri;
use policy::cost::PrefillCost;
use policy::units::Tokens;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::AsPath;
use super::base_url::address_of;
use super::calibration;
use super::checker::Checker;
use super::engine::{CachePolicy, Dialect, Priority};
use super::secret::{Secret, secret};

/// A worker: an engine's OpenAI-compatible endpoint, its prefill cost and its cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
#[schemars(rename = "Worker")]
pub(crate) struct WorkerSection {
    /// Name in metrics, logs and response headers. Default: the url's host and port (and base path).
    pub name: Option<String>,
    /// Base url, without `/v1`: the client's path is appended to it. `http`, or `https` with the settings of
    /// `[tls.workers]`.
    pub url: String,
    /// File with the API key that the worker requires (vLLM's and SGLang's `--api-key`), which the router sends in
    /// place of its clients'. Empty: none.
    #[serde(with = "AsPath")]
    pub api_key_file: Option<PathBuf>,
    /// α: milliseconds per uncached prompt token. `gpu-bench worker URL` measures it.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    pub alpha_ms_per_token: f64,
    /// β: milliseconds that every request takes before its first token, however short its prompt.
    #[schemars(range(min = 0, max = 1e9))]
    pub beta_ms: f64,
    /// γ: milliseconds per uncached token and token of context: the share of attention, which grows with history.
    #[schemars(range(min = 0, max = 1e6))]
    pub gamma_ms_per_token2: f64,
    /// Least time of a prefill in milliseconds, however short the prompt: on a GPU, reading the weights once. 0: none.
    #[schemars(range(min = 0, max = 1e9))]
    pub floor_ms: f64,
    /// File written by `gpu-bench worker URL`, with the measured α, β, γ and floor, in place of `alpha_ms_per_token`,
    /// `beta_ms`, `gamma_ms_per_token2` and `floor_ms`. Relative to the router's working directory. Empty: none.
    #[serde(with = "AsPath")]
    pub calibration: Option<PathBuf>,
    /// Tokens that fit into the worker's prefix cache: its number of blocks times its block size. Without this key, the
    /// router queries the worker (`GET /v1/tailroute`, `GET /server_info`, `GET /metrics`); for a worker that does not
    /// report its size, it starts with the default and learns the size from responses. A configured value is not
    /// corrected, and a wrong one costs cache hits.
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
    /// Dialect in which hints are sent to the worker.
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

impl Default for WorkerSection {
    fn default() -> Self {
        Self {
            name: None,
            url: String::new(),
            api_key_file: None,
            alpha_ms_per_token: 0.1,
            beta_ms: 20.0,
            gamma_ms_per_token2: 0.0,
            floor_ms: 0.0,
            calibration: None,
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

/// Length of the longest name, which goes into a header and a metric's label.
const LONGEST_NAME: usize = 64;

/// A worker; each data-parallel rank is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Name in metrics, logs and response headers: unique, visible ASCII characters, 1 to 64 and for a rank also
    /// `/dpN`.
    pub name: String,
    /// Base url: `http` or `https` scheme, an authority, and a path that does not end in `/` unless it is just that.
    pub url: Uri,
    /// API key that the worker requires, if there is one.
    pub api_key: Option<Secret>,
    /// Initial α, β, γ and floor.
    pub cost: PrefillCost,
    /// Whether `cost` was measured or configured; if not, the worker begins with its pool's median.
    pub cost_is_known: bool,
    /// Number of tokens that fit into the worker's prefix cache; at least one block.
    pub capacity: Tokens,
    /// Whether the configuration sets `capacity`. If not, the worker is queried, and `capacity` is the initial value.
    pub capacity_is_known: bool,
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// Data-parallel rank that requests are pinned to, if the url has several.
    pub rank: Option<u32>,
    /// Eviction policy of the worker's cache.
    pub cache_policy: CachePolicy,
    /// Dialect in which hints are sent to the worker.
    pub dialect: Dialect,
    /// Whether and how requests carry a priority.
    pub priority: Priority,
    /// Configured models; empty: the worker is queried.
    pub models: Vec<String>,
    /// Source of the worker's cache events.
    pub kv_events: KvEvents,
}

impl Worker {
    /// Returns the address of the url, if that has an IP address and no path.
    #[must_use]
    pub fn endpoint(&self) -> Option<SocketAddr> {
        address_of(&self.url)
    }
}

/// Source of a worker's cache events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvents {
    /// The worker is queried for the source.
    Auto,
    /// Events are not followed.
    Off,
    /// Events come from these addresses.
    At {
        /// Publisher: `tcp://host:port`.
        endpoint: String,
        /// Socket that replays lost events: `tcp://host:port`.
        replay: Option<String>,
    },
}

pub(crate) fn check_all(written: Vec<WorkerSection>, checker: &mut Checker<'_>) -> Vec<Worker> {
    let mut urls = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut workers = Vec::with_capacity(written.len());
    for (at, worker) in written.into_iter().enumerate() {
        let (named, ranks) = (worker.name.is_some(), worker.ranks);
        let Some(worker) = check(worker, at, checker) else {
            continue;
        };
        if let Some(first) = urls.insert(worker.url.to_string(), at) {
            let what = format!("{} is already the url of workers[{first}]", worker.url);
            checker.report(&format!("workers[{at}].url"), what, None);
        } else if let Some(first) = names.insert(worker.name.clone(), at) {
            let what = format!("`{}` is already the name of workers[{first}]", worker.name);
            let hint = (!named).then(|| "give one of the two a name".to_owned());
            checker.report(&format!("workers[{at}].name"), what, hint);
        }
        workers.extend(ranked(&worker, ranks));
    }
    workers
}

/// Checks a single worker, with problems at `workers[0]`. The worker is not divided into ranks.
pub(crate) fn check_one(written: WorkerSection, checker: &mut Checker<'_>) -> Option<Worker> {
    check(written, 0, checker)
}

fn ranked(worker: &Worker, ranks: u32) -> Vec<Worker> {
    if ranks <= 1 {
        return vec![worker.clone()];
    }
    let of = |rank| Worker {
        name: format!("{}/dp{rank}", worker.name),
        rank: Some(rank),
        kv_events: match &worker.kv_events {
            KvEvents::At { endpoint, replay } => KvEvents::At {
                endpoint: later_port(endpoint, rank),
                replay: replay.as_deref().map(|replay| later_port(replay, rank)),
            },
            other => other.clone(),
        },
        ..worker.clone()
    };
    (0..ranks).map(of).collect()
}

/// Adds the rank to the port, as engines assign ports to ranks. A port beyond the largest fails on connecting.
fn later_port(endpoint: &str, rank: u32) -> String {
    let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    let port = port.parse::<u32>().unwrap_or(0) + rank;
    format!("{host}:{port}")
}

fn check(written: WorkerSection, at: usize, checker: &mut Checker<'_>) -> Option<Worker> {
    let path = |key: &str| format!("workers[{at}].{key}");
    let url = checker.url(&path("url"), &written.url);
    let name = match (written.name.clone(), &url) {
        (Some(name), _) => {
            check_name(&name, &path("name"), checker);
            name
        }
        (None, Some(url)) => default_name(url),
        (None, None) => String::new(),
    };
    if written.capacity_tokens < u64::from(written.block_size_tokens) {
        let what = format!(
            "{} tokens are less than one block of {}",
            written.capacity_tokens, written.block_size_tokens
        );
        checker.report(&path("capacity_tokens"), what, None);
    }
    let api_key_file = written.api_key_file.as_deref();
    let api_key = api_key_file.and_then(|file| secret(file, &path("api_key_file"), checker));
    let (cost, cost_is_known) = cost(&written, &path, checker);
    let kv_events = kv_events(written.kv_events, Some(written.kv_events_replay), &path, checker);
    Some(Worker {
        name,
        url: url?,
        api_key,
        cost,
        cost_is_known,
        capacity: Tokens(written.capacity_tokens),
        capacity_is_known: checker.is_written(&path("capacity_tokens")),
        block_size: written.block_size_tokens,
        rank: None,
        cache_policy: written.cache_policy,
        dialect: written.dialect,
        priority: written.priority,
        models: written.models.unwrap_or_default(),
        kv_events,
    })
}

/// Returns α, β, γ and the floor, and whether they were measured or configured.
fn cost(
    written: &WorkerSection,
    path: &impl Fn(&str) -> String,
    checker: &mut Checker<'_>,
) -> (PrefillCost, bool) {
    let keys = ["alpha_ms_per_token", "beta_ms", "gamma_ms_per_token2", "floor_ms"];
    let in_words = keys.map(path).iter().any(|key| checker.is_written(key));
    let cost = PrefillCost {
        alpha_ms_per_token: written.alpha_ms_per_token,
        beta_ms: written.beta_ms,
        gamma_ms_per_token2: written.gamma_ms_per_token2,
        floor_ms: written.floor_ms,
    };
    let Some(calibration) = &written.calibration else {
        return (cost, in_words);
    };
    if in_words {
        let what =
            "is set together with alpha_ms_per_token, beta_ms, gamma_ms_per_token2 or floor_ms, which it replaces"
                .to_owned();
        checker.report(
            &path("calibration"),
            what,
            Some("remove one of the two".to_owned()),
        );
    }
    match calibration::read(calibration) {
        Ok(measured) => (measured, true),
        Err(error) => {
            checker.report(&path("calibration"), error.to_string(), None);
            (cost, true)
        }
    }
}

/// Checks that a name fits a header and a metric's label.
pub(crate) fn check_name(name: &str, key: &str, checker: &mut Checker<'_>) {
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("expected 1 to {LONGEST_NAME} visible ASCII characters without spaces");
        checker.report(key, what, None);
    }
}

fn kv_events(
    endpoint: String,
    replay: Option<String>,
    path: &impl Fn(&str) -> String,
    checker: &mut Checker<'_>,
) -> KvEvents {
    let replay = replay.filter(|text| !text.is_empty());
    let is_tcp = |text: &str| {
        let port = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        port.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    let named = !matches!(endpoint.as_str(), "auto" | "off");
    if named && !is_tcp(&endpoint) {
        let what = format!("expected auto, off or tcp://host:port, found {endpoint:?}");
        checker.report(&path("kv_events"), what, None);
    }
    match &replay {
        Some(_) if !named => {
            let what = "needs a kv_events that names the publisher".to_owned();
            checker.report(&path("kv_events_replay"), what, None);
        }
        Some(text) if !is_tcp(text) => {
            let what = format!("expected tcp://host:port, found {text:?}");
            checker.report(&path("kv_events_replay"), what, None);
        }
        _ => {}
    }
    match endpoint.as_str() {
        "auto" => KvEvents::Auto,
        "off" => KvEvents::Off,
        _ => KvEvents::At { endpoint, replay },
    }
}

/// Returns `host:port`, with the base path if there is one.
fn default_name(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let name = format!("{authority}{}", url.path().trim_end_matches('/'));
    name.chars().take(LONGEST_NAME).collect()
}
