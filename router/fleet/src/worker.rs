//! One worker.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use http::Uri;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use policy::estimate::{PendingWork, Slow, Utilisation};
use policy::ids::WorkerId;
use policy::units::Millis;
use telemetry::traces::AttemptTarget;

use super::breaker::{self, Breaker};
use super::dialect::Dialect;
use super::errors::Errors;
use super::facts::{EngineFacts, Listed, Serves};
use super::health::{Health, Probe, ProbeFailure};
use super::hints::HintQueue;
use super::log_rate_limit::{CountedLog, LogRateLimit};
use super::overrides::{AdminState, AtomicAdminState, Measured, PinnedAlpha};
use super::pause::Pause;
use super::source::WorkerSource;
use tailroute_http::upstream::{Origin, POOL_IDLE};

mod cost;
mod load;
mod trust;

pub use load::WorkerLoad;
use trust::Trust;

/// A worker: its identity, configuration and state.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub spec: config::Worker,
    /// The known facts about the worker's engine.
    pub facts: EngineFacts,
    pub hints: HintQueue,
    /// Recent errors of predicted times to first token.
    pub errors: Mutex<Errors>,
    /// Rate limit for the warning about implausible claims of the worker.
    pub doubted: LogRateLimit,
    /// Address, if the URL names one and no path.
    pub endpoint: Option<SocketAddr>,
    /// Time at which the worker joined. Older data of its slot belongs to another worker.
    pub joined: Millis,
    /// Source of the worker's registration.
    pub source: WorkerSource,
    offered: AtomicBool,
    /// Connections to the worker, for turns without TLS.
    pub origin: Option<Arc<Origin>>,
    load: Mutex<WorkerLoad>,
    health: Mutex<Health>,
    failing: Mutex<Option<ProbeFailure>>,
    well: AtomicBool,
    admin_state: AtomicAdminState,
    /// Time of the worker's removal, in milliseconds.
    gone_at: AtomicU64,
    pinned: Mutex<Option<PinnedAlpha>>,
    is_pinned: AtomicBool,
    measured: Mutex<Option<Measured>>,
    trust: Mutex<Trust>,
    /// Whether `trust` limits the worker.
    is_watched: AtomicBool,
    /// Whether the worker's probes are late.
    late: AtomicBool,
    bytes_seen: AtomicU64,
    progress: Mutex<ResponseProgress>,
    /// Rate limit for the warning about failed connections.
    pub unreachable: LogRateLimit,
    /// Rate limit for the warning about failed requests.
    pub failures: CountedLog,
    tells_cached: AtomicBool,
    slowdown: ArcSwapOption<Slowdown>,
}

/// Slowness of a worker, and the part of its queue that slow workers cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slowdown {
    /// Slowness of the worker itself; `None` if it is not slow.
    pub own: Option<Slow>,
    /// Share of the worker's queue that slow workers cause.
    pub queue_share: f64,
}

/// The last observed progress of a worker's responses.
#[derive(Clone, Copy, Debug)]
struct ResponseProgress {
    /// Count of response bytes.
    bytes: u64,
    /// Time at which the count last grew, or the worker last had no request.
    at: Millis,
}

impl Worker {
    /// Creates a worker that is not ready and without observations.
    #[must_use]
    pub fn new(id: WorkerId, spec: config::Worker, config: &config::Config, joined: Millis) -> Self {
        let (health, failure) = (&config.health, &config.failure);
        let breaker = Breaker::new(breaker::Settings {
            failures: f64::from(failure.breaker_failures),
            share: failure.breaker_share,
            pause: failure.breaker_pause,
            longest_pause: failure.breaker_longest_pause,
        });
        let load = WorkerLoad {
            pending: PendingWork::new(),
            utilisation: Utilisation::new(config.routing.utilisation_window),
            in_flight: 0,
            others: 0,
            cost: spec.cost,
            learned: spec.cost,
            overhead: Millis::ZERO,
            figure: None,
        };
        Self {
            id,
            endpoint: spec.endpoint(),
            facts: EngineFacts::new(&spec, joined),
            hints: HintQueue::default(),
            errors: Mutex::default(),
            doubted: LogRateLimit::default(),
            joined,
            source: WorkerSource::default(),
            offered: AtomicBool::new(true),
            origin: Origin::new(&spec.url, config.limits.connect_timeout, POOL_IDLE),
            load: Mutex::new(load),
            health: Mutex::new(Health::new(health.unhealthy_after, health.healthy_after)),
            failing: Mutex::new(None),
            well: AtomicBool::new(false),
            admin_state: AtomicAdminState::default(),
            gone_at: AtomicU64::new(0),
            pinned: Mutex::new(None),
            is_pinned: AtomicBool::new(false),
            measured: Mutex::new(None),
            trust: Mutex::new(Trust {
                breaker,
                pause: Pause::default(),
                since: None,
                slow_start: failure.slow_start,
            }),
            is_watched: AtomicBool::new(false),
            late: AtomicBool::new(false),
            bytes_seen: AtomicU64::new(0),
            progress: Mutex::new(ResponseProgress { bytes: 0, at: joined }),
            unreachable: LogRateLimit::default(),
            failures: CountedLog::default(),
            tells_cached: AtomicBool::new(false),
            slowdown: ArcSwapOption::empty(),
            spec,
        }
    }

    /// Sets the source of the worker, and whether that source allows the worker to get turns.
    #[must_use]
    pub fn with_source(mut self, source: WorkerSource, offered: bool) -> Self {
        self.source = source;
        self.offered = AtomicBool::new(offered);
        self
    }

    /// Returns the worker's name in metrics, logs and response headers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    pub fn set_slowdown(&self, slowdown: Slowdown) {
        let any = (slowdown != Slowdown::default()).then(|| Arc::new(slowdown));
        if any.is_some() || self.slowdown.load().is_some() {
            self.slowdown.store(any);
        }
    }

    pub fn slowdown(&self) -> Slowdown {
        self.slowdown.load().as_deref().copied().unwrap_or_default()
    }

    /// Returns whether the engine caches inputs of an embedding model without a salt; true until the engine has
    /// reported it.
    #[must_use]
    pub fn shares_inputs(&self) -> bool {
        self.facts.shares_inputs()
    }

    /// Returns whether the worker may get turns: it is healthy, offered by its source and without an override.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_well() && self.is_offered() && self.admin_state() == AdminState::None
    }

    /// Returns whether the worker may get turns that only it can answer, which a cordon permits.
    #[must_use]
    pub fn accepts_pinned(&self) -> bool {
        self.is_well()
            && self.is_offered()
            && matches!(self.admin_state(), AdminState::None | AdminState::Cordoned)
    }

    /// Returns whether the worker's source allows it to get turns.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }

    /// Sets whether the worker's source allows it to get turns. Returns the previous value.
    pub fn set_offered(&self, offered: bool) -> bool {
        self.offered.swap(offered, Ordering::AcqRel)
    }

    /// Returns whether probes find the worker healthy.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.well.load(Ordering::Acquire) && self.admin_state() != AdminState::Gone
    }

    #[must_use]
    pub fn admin_state(&self) -> AdminState {
        self.admin_state.get()
    }

    /// Sets the administrative state. Returns the previous one; `None` if the worker is leaving, which is final.
    pub fn set_admin_state(&self, hold: AdminState) -> Option<AdminState> {
        self.admin_state.set(hold)
    }

    /// Marks a worker without requests and state as removed. Its slot may be reused some seconds later.
    pub fn gone(&self, now: Millis) {
        self.gone_at.store(now.0 as u64, Ordering::Release);
        self.admin_state.set(AdminState::Gone);
    }

    /// Returns when the worker left the fleet, if it has.
    #[must_use]
    pub fn gone_since(&self) -> Option<Millis> {
        (self.admin_state() == AdminState::Gone).then(|| Millis(self.gone_at.load(Ordering::Acquire) as f64))
    }

    /// Records a probe, or a request that shows the same. Returns the new readiness if it changed.
    pub fn observe_health(&self, now: Millis, probe: Probe) -> Option<bool> {
        let mut health = self.health.lock();
        let changed = health.observe(probe);
        if changed == Some(true) {
            // Earlier failures say nothing about a restarted worker.
            self.with_breaker(now, |breaker| breaker.reset(now));
            self.starts_anew(now);
        }
        self.well.store(health.is_ready(), Ordering::Release);
        self.late.store(health.is_late(), Ordering::Relaxed);
        if changed == Some(false) {
            // It may return with other settings.
            self.facts.pause();
            self.tells_cached.store(false, Ordering::Relaxed);
        }
        changed
    }

    /// Records the error of a failed probe. Returns whether it is the first since one succeeded.
    pub fn probe_failed(&self, now: Millis, error: String) -> bool {
        let mut failing = self.failing.lock();
        let since = failing.as_ref().map_or(now, |failure| failure.since);
        failing.replace(ProbeFailure { error, since }).is_none()
    }

    /// Records that a probe succeeded.
    pub fn probe_succeeded(&self) {
        *self.failing.lock() = None;
    }

    /// Returns the failed probes since the last one that succeeded, if any.
    #[must_use]
    pub fn failing(&self) -> Option<ProbeFailure> {
        self.failing.lock().clone()
    }

    /// Returns the cached tokens of a prompt from the figure in its complete response. SGLang, and vLLM for long, omit
    /// a figure of zero, so absence means zero for a worker that has reported one before.
    #[must_use]
    pub fn cached(&self, said: Option<u64>) -> Option<u64> {
        if said.is_some() {
            self.tells_cached.store(true, Ordering::Relaxed);
            return said;
        }
        self.tells_cached.load(Ordering::Relaxed).then_some(0)
    }

    /// Returns whether a response has reported cached tokens since the worker became healthy.
    #[must_use]
    pub fn reports_cached(&self) -> bool {
        self.tells_cached.load(Ordering::Relaxed)
    }

    /// Returns whether the worker's probes are late. Such a worker is passed over while others remain.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Returns for how long the worker has had requests and sent nothing. Progress is noticed only when this is called,
    /// as each probe does.
    pub fn silent_for(&self, now: Millis) -> Millis {
        let (bytes, is_idle) = (self.bytes_seen(), self.with_load(|load| load.in_flight == 0));
        let mut progress = self.progress.lock();
        if is_idle || progress.bytes != bytes {
            *progress = ResponseProgress { bytes, at: now };
        }
        now - progress.at
    }

    /// Returns the number of response bytes received, without streams' events before the first token. A worker that
    /// sends is alive, whatever its probes report.
    #[must_use]
    pub fn bytes_seen(&self) -> u64 {
        self.bytes_seen.load(Ordering::Relaxed)
    }

    pub fn count_bytes(&self, bytes: usize) {
        self.bytes_seen.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    #[must_use]
    pub fn dialect(&self) -> Arc<dyn Dialect> {
        self.facts.dialect()
    }

    /// Returns whether hints about conversations can be sent to the worker outside of requests.
    #[must_use]
    pub fn hears_hints(&self) -> bool {
        self.facts.hears_hints()
    }

    /// Returns whether objectives can be sent to the worker.
    #[must_use]
    pub fn takes_objective(&self) -> bool {
        self.dialect().takes_objective()
    }

    /// Returns the models that the worker lists, if known.
    #[must_use]
    pub fn models(&self) -> Option<Arc<Listed>> {
        self.facts.models()
    }

    /// Returns the longest context, prompt and response together, that is listed for this model, else for another one.
    #[must_use]
    pub fn context(&self, model: &str) -> Option<u64> {
        self.models()?.context(model)
    }

    /// Returns whether the worker serves this model.
    #[must_use]
    pub fn serves(&self, model: &str) -> Serves {
        self.facts.serves(model)
    }

    /// Returns whether `host` is the worker's, by the configured name or address.
    pub(crate) fn has_host(&self, host: &str) -> bool {
        let own = self.spec.url.host().unwrap_or_default();
        own.trim_matches(['[', ']']).eq_ignore_ascii_case(host)
    }

    /// Returns whether `host` and `port` are the worker's. An engine that does not know its host names the unspecified
    /// or the local one.
    pub(crate) fn has_address(&self, host: &str, port: Option<u16>) -> bool {
        let url = &self.spec.url;
        let default = if url.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let own = url.port_u16().unwrap_or(default);
        let ip: Option<IpAddr> = host.parse().ok();
        let is_local = host.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.is_loopback());
        let is_port = port.unwrap_or(default) == own;
        ip.is_some_and(|ip| ip.is_unspecified()) || (is_port && (is_local || self.has_host(host)))
    }

    /// Returns the worker's URI for a path and query. Fails if base path and path do not form a valid URI.
    pub fn uri(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let base = self.spec.url.path().trim_end_matches('/');
        let path: PathAndQuery = if base.is_empty() {
            path_and_query.parse()?
        } else {
            format!("{base}{path_and_query}").parse()?
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = self.spec.url.scheme().cloned();
        parts.authority = self.spec.url.authority().cloned();
        parts.path_and_query = Some(path);
        Ok(Uri::from_parts(parts)?)
    }
}

impl AttemptTarget for Worker {
    fn name(&self) -> &str {
        self.name()
    }

    fn url(&self) -> &Uri {
        &self.spec.url
    }
}
