//! One worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use http::Uri;
use http::uri::PathAndQuery;
use parking_lot::{Mutex, RwLock};
use policy::estimate::{PendingWork, Slow, Utilisation};
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use telemetry::traces::Target;

use super::breaker::{self, Breaker};
use super::dialect::{self, Dialect, Terms};
use super::errors::Errors;
use super::health::{Health, Probe, ProbeFailure};
use super::hints::HintQueue;
use super::log_rate_limit::LogRateLimit;
use super::overrides::{AdminState, AtomicAdminState, Measured, PinnedAlpha};
use super::pause::Pause;
use super::source::Source;
use tailroute_http::upstream::{Origin, POOL_IDLE};

mod cost;
mod load;
mod trust;

pub use load::Load;
use trust::Trust;

/// One worker: its identity, configuration and state.
#[derive(Debug)]
pub struct Worker {
    /// Slot.
    pub id: WorkerId,
    /// Configuration.
    pub spec: config::Worker,
    /// Hints to be sent.
    pub hints: HintQueue,
    /// Recent errors of predicted times to first token.
    pub errors: Mutex<Errors>,
    /// Rate limit for the warning about implausible claims of the worker.
    pub doubted: LogRateLimit,
    /// Address, if the url names one and no path.
    pub endpoint: Option<SocketAddr>,
    /// When it joined: older data of its slot belongs to another worker.
    pub joined: Millis,
    /// Source of its registration.
    pub source: Source,
    offered: AtomicBool,
    /// Connections to it, for turns without TLS.
    pub origin: Option<Arc<Origin>>,
    load: Mutex<Load>,
    health: Mutex<Health>,
    failing: Mutex<Option<ProbeFailure>>,
    well: AtomicBool,
    admin_state: AtomicAdminState,
    /// When it was removed, in milliseconds.
    gone_at: AtomicU64,
    pinned: Mutex<Option<PinnedAlpha>>,
    is_pinned: AtomicBool,
    measured: Mutex<Option<Measured>>,
    trust: Mutex<Trust>,
    /// Whether `trust` limits the worker.
    is_watched: AtomicBool,
    dialect: RwLock<Arc<dyn Dialect>>,
    models: ArcSwapOption<Vec<serde_json::Value>>,
    bytes_seen: AtomicU64,
    tells_cached: AtomicBool,
    shares_inputs: AtomicBool,
    slowdown: ArcSwapOption<Slowdown>,
}

/// What slow workers cost the turns of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slowdown {
    /// How slow the worker itself is.
    pub own: Option<Slow>,
    /// Share of its queue that slow workers cause.
    pub queue_share: f64,
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
        let load = Load {
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
            hints: HintQueue::default(),
            errors: Mutex::default(),
            doubted: LogRateLimit::default(),
            joined,
            source: Source::default(),
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
            dialect: RwLock::new(dialect::before_probe(&spec)),
            models: ArcSwapOption::empty(),
            bytes_seen: AtomicU64::new(0),
            tells_cached: AtomicBool::new(false),
            shares_inputs: AtomicBool::new(true),
            slowdown: ArcSwapOption::empty(),
            spec,
        }
    }

    /// Sets the source of the worker, and whether that allows it to be given turns.
    #[must_use]
    pub fn with_source(mut self, source: Source, offered: bool) -> Self {
        self.source = source;
        self.offered = AtomicBool::new(offered);
        self
    }

    /// Returns the name in metrics, logs and response headers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Sets what slow workers cost its turns.
    pub fn set_slowdown(&self, slowdown: Slowdown) {
        let any = (slowdown != Slowdown::default()).then(|| Arc::new(slowdown));
        if any.is_some() || self.slowdown.load().is_some() {
            self.slowdown.store(any);
        }
    }

    /// Returns what slow workers cost its turns.
    pub fn slowdown(&self) -> Slowdown {
        self.slowdown.load().as_deref().copied().unwrap_or_default()
    }

    /// Records whether the worker caches inputs of an embedding model, which take no salt.
    pub fn set_shares_inputs(&self, shares: bool) {
        self.shares_inputs.store(shares, Ordering::Relaxed);
    }

    /// Returns whether it caches inputs of an embedding model without a salt; true until the worker has reported it.
    #[must_use]
    pub fn shares_inputs(&self) -> bool {
        self.shares_inputs.load(Ordering::Relaxed)
    }

    /// Returns whether it may be given turns: healthy, offered by its source and without an override.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_well() && self.is_offered() && self.admin_state() == AdminState::None
    }

    /// Returns whether it may be given turns that only it can answer, which a cordon permits.
    #[must_use]
    pub fn accepts_pinned(&self) -> bool {
        self.is_well()
            && self.is_offered()
            && matches!(self.admin_state(), AdminState::None | AdminState::Cordoned)
    }

    /// Returns whether its source allows it to be given turns.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }

    /// Sets whether its source allows it to be given turns. Returns the previous value.
    pub fn set_offered(&self, offered: bool) -> bool {
        self.offered.swap(offered, Ordering::AcqRel)
    }

    /// Returns whether probes find it healthy.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.well.load(Ordering::Acquire) && self.admin_state() != AdminState::Gone
    }

    /// Returns the administrative state.
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
        if changed == Some(false) {
            // It may return with other settings.
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

    /// Returns the probes that have failed since one succeeded, if any.
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

    /// Returns whether a response has reported cached tokens since it became healthy.
    #[must_use]
    pub fn reports_cached(&self) -> bool {
        self.tells_cached.load(Ordering::Relaxed)
    }

    /// Returns the response bytes received: a worker that sends is alive, whatever its probes say.
    #[must_use]
    pub fn bytes_seen(&self) -> u64 {
        self.bytes_seen.load(Ordering::Relaxed)
    }

    /// Counts response bytes.
    pub fn count_bytes(&self, bytes: usize) {
        self.bytes_seen.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the hint dialect.
    #[must_use]
    pub fn dialect(&self) -> Arc<dyn Dialect> {
        Arc::clone(&self.dialect.read())
    }

    /// Returns whether hints about conversations can be sent outside of requests.
    #[must_use]
    pub fn hears_hints(&self) -> bool {
        self.dialect.read().hears_hints()
    }

    /// Returns whether the objective can be sent.
    #[must_use]
    pub fn takes_objective(&self) -> bool {
        let terms = Terms {
            xi_tokens: 0.0,
            next_prompt: Tokens::ZERO,
            epoch: 0,
        };
        self.dialect.read().objective(&terms).is_some()
    }

    /// Sets the dialect and models that a probe found.
    pub fn learned(&self, dialect: Arc<dyn Dialect>, models: Option<Vec<serde_json::Value>>) {
        *self.dialect.write() = dialect;
        if let Some(models) = models {
            self.models.store(Some(Arc::new(models)));
        }
    }

    /// Returns the models as the worker lists them, if known.
    #[must_use]
    pub fn models(&self) -> Option<Arc<Vec<serde_json::Value>>> {
        self.models.load_full()
    }

    /// Returns the longest prompt and response together that it lists for this model, else for another one.
    #[must_use]
    pub fn context(&self, model: &str) -> Option<u64> {
        let models = self.models.load();
        let cards = models.as_ref()?.iter();
        let told = cards.filter_map(|card| Some((card["id"] == model, card["max_model_len"].as_u64()?)));
        told.max().map(|(_, length)| length)
    }

    /// Returns whether it serves this model; `None` if its models are not known.
    #[must_use]
    pub fn serves(&self, model: &str) -> Option<bool> {
        if !self.spec.models.is_empty() {
            return Some(self.spec.models.iter().any(|name| name == model));
        }
        let models = self.models.load();
        let models = models.as_ref()?;
        Some(models.iter().any(|card| card["id"] == model))
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

impl Target for Worker {
    fn name(&self) -> &str {
        self.name()
    }

    fn url(&self) -> &Uri {
        &self.spec.url
    }
}
