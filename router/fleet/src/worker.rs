//! One worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use http::Uri;
use http::uri::PathAndQuery;
use parking_lot::{Mutex, RwLock};
use policy::cost::PrefillCost;
use policy::estimate::{PendingWork, QueueFigure, Reconciled, Ticket, Utilisation};
use policy::ids::WorkerId;
use policy::route::WorkerView;
use policy::units::{Millis, Tokens};
use telemetry::traces::Target;

use super::breaker::{self, Breaker, BreakerPass, BreakerState};
use super::dialect::{self, Dialect, Terms};
use super::errors::Errors;
use super::health::{Health, Probe, ProbeFailure};
use super::hints::HintQueue;
use super::hold::{AtomicHold, Hold, Measured, PinnedAlpha};
use super::log_rate_limit::LogRateLimit;
use super::rotation::Condition;
use super::source::Source;
use tailroute_http::upstream::{Origin, POOL_IDLE};

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
    /// Whether its source allows it to be given turns.
    offered: AtomicBool,
    /// Connections to it, for turns without TLS.
    pub origin: Option<Arc<Origin>>,
    load: Mutex<Load>,
    health: Mutex<Health>,
    failing: Mutex<Option<ProbeFailure>>,
    well: AtomicBool,
    hold: AtomicHold,
    /// When it was removed, in milliseconds.
    gone_at: AtomicU64,
    /// The α set by an operator, with its expiry.
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
}

/// Breaker and slow start of a worker.
#[derive(Debug)]
struct Trust {
    breaker: Breaker,
    /// When it last became ready.
    since: Option<Millis>,
    slow_start: Millis,
}

impl Trust {
    /// Returns the progress of the slow start, from 0 to 1.
    fn started(&self, now: Millis) -> f64 {
        match self.since {
            Some(since) if self.slow_start > Millis::ZERO => {
                ((now - since).0 / self.slow_start.0).clamp(0.0, 1.0)
            }
            _ => 1.0,
        }
    }
}

/// Turns sent to a worker, and their predicted cost.
#[derive(Debug)]
pub struct Load {
    /// Prefill work without a first token so far.
    pub pending: PendingWork,
    /// ρ.
    pub utilisation: Utilisation,
    /// Requests sent and not finished.
    pub in_flight: u32,
    /// Requests in flight that other replicas reported.
    pub others: u32,
    /// Prefill cost in force.
    pub cost: PrefillCost,
    /// Learned prefill cost, regardless of overrides.
    pub learned: PrefillCost,
    /// Time to first token beside queue and prefill, for engines that report those.
    pub overhead: Millis,
    /// The last queue figure that the engine reported, and its reconciliation.
    pub figure: Option<(QueueFigure, Reconciled)>,
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
            hold: AtomicHold::default(),
            gone_at: AtomicU64::new(0),
            pinned: Mutex::new(None),
            is_pinned: AtomicBool::new(false),
            measured: Mutex::new(None),
            trust: Mutex::new(Trust {
                breaker,
                since: None,
                slow_start: failure.slow_start,
            }),
            is_watched: AtomicBool::new(false),
            dialect: RwLock::new(dialect::before_probe(&spec)),
            models: ArcSwapOption::empty(),
            bytes_seen: AtomicU64::new(0),
            tells_cached: AtomicBool::new(false),
            shares_inputs: AtomicBool::new(true),
            spec,
        }
    }

    /// Sets the source of the worker, and whether that allows it to be given turns.
    #[must_use]
    pub fn named_by(mut self, source: Source, offered: bool) -> Self {
        self.source = source;
        self.offered = AtomicBool::new(offered);
        self
    }

    /// Returns the name in metrics, logs and response headers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the prefill cost in force.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        self.load.lock().cost
    }

    /// Sets the learned prefill cost. Work already queued keeps its prediction.
    pub fn set_cost(&self, cost: PrefillCost) {
        let pinned = self.pinned.lock();
        self.take_cost(cost, pinned.as_ref());
    }

    /// Sets the learned time to first token beside queue and prefill.
    pub fn set_overhead(&self, overhead: Millis) {
        self.load.lock().overhead = overhead;
    }

    fn take_cost(&self, learned: PrefillCost, pinned: Option<&PinnedAlpha>) {
        let mut load = self.load.lock();
        load.learned = learned;
        let cost = PrefillCost {
            alpha_ms_per_token: pinned.map_or(learned.alpha_ms_per_token, |pinned| pinned.alpha_ms_per_token),
            ..learned
        };
        if cost != load.cost {
            let factor = cost.times_as_long_as(&load.cost, load.utilisation.mean_work());
            load.pending.repriced(factor);
            load.cost = cost;
        }
    }

    /// Sets a measured prefill cost.
    pub fn calibrated(&self, measured: Measured) {
        *self.measured.lock() = Some(measured);
        self.set_cost(measured.cost);
    }

    /// Returns the cost measured since the router's start.
    #[must_use]
    pub fn calibration(&self) -> Option<Measured> {
        *self.measured.lock()
    }

    /// Reconciles the predicted queue with the queue figure that the worker reports.
    pub fn reconcile(&self, now: Millis, mut figure: QueueFigure) -> Reconciled {
        let mut load = self.load.lock();
        figure.in_flight = figure.in_flight.max(load.in_flight + load.others);
        let mean = load.utilisation.mean_work();
        figure.mean_work = if mean > Millis::ZERO {
            mean
        } else {
            Millis(load.cost.beta_ms.max(load.cost.floor_ms))
        };
        let found = load.pending.reconcile(now, &figure);
        load.figure = Some((figure, found));
        found
    }

    /// Records whether the worker caches inputs of an embedding model, which take no salt.
    pub fn said_sharing(&self, shares: bool) {
        self.shares_inputs.store(shares, Ordering::Relaxed);
    }

    /// Returns whether it caches inputs of an embedding model without a salt; true until the worker has reported it.
    #[must_use]
    pub fn shares_inputs(&self) -> bool {
        self.shares_inputs.load(Ordering::Relaxed)
    }

    /// Overrides α until the pin expires, or removes the override. Returns the previous one.
    pub fn pin_alpha(&self, pin: Option<PinnedAlpha>) -> Option<PinnedAlpha> {
        self.replace_pin(&mut self.pinned.lock(), pin)
    }

    /// Removes an expired override of α, and returns it.
    pub fn unpin_due(&self, now: Millis) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        // Checked and removed under one lock, since an operator may set another one meanwhile.
        let mut pinned = self.pinned.lock();
        let until = pinned.and_then(|pinned| pinned.until)?;
        if until > now {
            return None;
        }
        self.replace_pin(&mut pinned, None)
    }

    fn replace_pin(&self, pinned: &mut Option<PinnedAlpha>, pin: Option<PinnedAlpha>) -> Option<PinnedAlpha> {
        let learned = self.load.lock().learned;
        self.take_cost(learned, pin.as_ref());
        self.is_pinned.store(pin.is_some(), Ordering::Release);
        std::mem::replace(pinned, pin)
    }

    /// Returns the override of α.
    #[must_use]
    pub fn pinned_alpha(&self) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        *self.pinned.lock()
    }

    /// Returns whether it may be given turns: healthy, offered by its source and without an override.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_well() && self.is_offered() && self.hold() == Hold::None
    }

    /// Returns whether it may be given turns that only it can answer, which a cordon permits.
    #[must_use]
    pub fn may_answer_its_own(&self) -> bool {
        self.is_well() && self.is_offered() && matches!(self.hold(), Hold::None | Hold::Cordoned)
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
        self.well.load(Ordering::Acquire) && self.hold() != Hold::Gone
    }

    /// Returns the administrative state.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.hold.get()
    }

    /// Sets the administrative state. Returns the previous one; `None` if the worker is leaving, which is final.
    pub fn set_hold(&self, hold: Hold) -> Option<Hold> {
        self.hold.set(hold)
    }

    /// Marks a worker without requests and state as removed.
    pub(super) fn gone(&self, now: Millis) {
        self.gone_at.store(now.0 as u64, Ordering::Release);
        self.hold.set(Hold::Gone);
    }

    pub(super) fn gone_since(&self) -> Option<Millis> {
        (self.hold() == Hold::Gone).then(|| Millis(self.gone_at.load(Ordering::Acquire) as f64))
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
    pub fn saw_bytes(&self, bytes: usize) {
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

    /// Returns the longest prompt and response together that the worker lists for this model, or for another one if
    /// this is not listed.
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

    /// Returns the worker's part of a routing snapshot.
    #[must_use]
    pub fn view(&self, now: Millis, model: Option<&str>, indexed: Tokens, conversations: f64) -> WorkerView {
        let serves = model.is_none_or(|model| self.serves(model) != Some(false));
        let load = self.load.lock();
        WorkerView {
            id: self.id,
            ready: self.is_ready() && serves,
            cost: load.cost,
            overhead: load.overhead,
            wait: load.pending.wait(now),
            utilisation: load.utilisation.at(now),
            mean_work: load.utilisation.mean_work(),
            in_flight: load.in_flight + load.others,
            indexed,
            conversations,
        }
    }

    /// Sets the utilisation assumed until the worker has turns of its own.
    pub(super) fn begins_as(&self, utilisation: Utilisation) {
        self.load.lock().utilisation = utilisation;
    }

    /// Reads the load under its lock.
    pub fn with_load<T>(&self, read: impl FnOnce(&Load) -> T) -> T {
        read(&self.load.lock())
    }

    /// Counts a request that is sent.
    pub(super) fn sent(&self, now: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.in_flight += 1;
        prefill.map(|work| {
            load.utilisation.add(now, work);
            load.pending.sent(now, work)
        })
    }

    /// Ends the wait of a request whose first token arrived.
    pub(super) fn prefilled(&self, now: Millis, ticket: Ticket) -> Option<Millis> {
        self.load.lock().pending.first_token(now, ticket)
    }

    /// Ends the count of a request, and its wait if it has no first token.
    pub(super) fn ended(&self, now: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        debug_assert!(load.in_flight > 0, "a request ends twice");
        load.in_flight = load.in_flight.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(now, ticket);
        }
    }

    /// Counts a request of another replica. `prefill` is its predicted prefill, if that is not over.
    pub fn others_sent(&self, at: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.others += 1;
        prefill.map(|work| {
            load.utilisation.add(at, work);
            load.pending.sent(at, work)
        })
    }

    /// Ends the wait of another replica's request.
    pub fn others_prefilled(&self, at: Millis, ticket: Ticket) {
        self.load.lock().pending.first_token(at, ticket);
    }

    /// Ends the count of another replica's request, and its wait if it has no first token.
    pub fn others_ended(&self, at: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        load.others = load.others.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(at, ticket);
        }
    }

    /// Returns breaker state and slow start.
    #[must_use]
    pub fn condition(&self, now: Millis) -> Condition {
        if !self.is_watched.load(Ordering::Acquire) {
            return Condition::WELL;
        }
        let trust = self.trust.lock();
        Condition {
            breaker: trust.breaker.standing(now),
            failing: trust.breaker.failing(),
            started: trust.started(now),
        }
    }

    /// Returns when it last became ready.
    #[must_use]
    pub fn ready_since(&self) -> Option<Millis> {
        self.trust.lock().since
    }

    /// Admits a request if the breaker does, or `regardless` of it where no other worker remains.
    #[must_use]
    pub fn admit(&self, now: Millis, regardless: bool) -> Option<BreakerPass> {
        if !self.is_watched.load(Ordering::Acquire) {
            return Some(BreakerPass::Ordinary);
        }
        let pass = self.trust.lock().breaker.admit(now);
        pass.or(regardless.then_some(BreakerPass::Ordinary))
    }

    /// Applies a change to the breaker and updates `is_watched`.
    pub(super) fn with_breaker<T>(&self, now: Millis, tell: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut trust = self.trust.lock();
        let told = tell(&mut trust.breaker);
        let watched = trust.breaker.standing(now) != BreakerState::Closed || trust.started(now) < 1.0;
        self.is_watched.store(watched, Ordering::Release);
        told
    }

    /// Begins a slow start.
    pub(super) fn starts_anew(&self, now: Millis) {
        let mut trust = self.trust.lock();
        trust.since = Some(now);
        self.is_watched.store(true, Ordering::Release);
    }

    /// Returns the worker's URI for a path and query.
    ///
    /// # Errors
    /// Fails if base path and path do not form a valid URI.
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
