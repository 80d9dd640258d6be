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

use super::breaker::{self, Breaker, Pass, Standing};
use super::dialect::{self, Dialect, Terms};
use super::errors::Errors;
use super::health::{Health, Probe};
use super::hints::HintQueue;
use super::hold::{AtomicHold, Hold, Measured, PinnedAlpha};
use super::rotation::Condition;
use super::seldom::Seldom;
use super::source::Source;
use tailroute_http::upstream::{Origin, POOL_IDLE};

/// One worker: who it is, and what is known of it.
#[derive(Debug)]
pub struct Worker {
    /// Its slot.
    pub id: WorkerId,
    /// What was configured.
    pub spec: config::Worker,
    /// What it should be told.
    pub hints: HintQueue,
    /// How far off its predicted times to first token were of late.
    pub errors: Mutex<Errors>,
    /// When it was last said that it claims what cannot be.
    pub doubted: Seldom,
    /// Its address, if its url names one and nothing else.
    pub endpoint: Option<SocketAddr>,
    /// When it joined: whatever is older under its slot was another's.
    pub joined: Millis,
    /// Who named it.
    pub source: Source,
    /// Whether who named it says that it may be given work.
    offered: AtomicBool,
    /// Connections to it, for turns in plain text.
    pub origin: Option<Arc<Origin>>,
    load: Mutex<Load>,
    health: Mutex<Health>,
    well: AtomicBool,
    hold: AtomicHold,
    /// When it was gone, in milliseconds, once it is.
    gone_at: AtomicU64,
    /// α that somebody has set, and until when.
    pinned: Mutex<Option<PinnedAlpha>>,
    is_pinned: AtomicBool,
    measured: Mutex<Option<Measured>>,
    trust: Mutex<Trust>,
    /// Whether `trust` has anything to say.
    is_watched: AtomicBool,
    dialect: RwLock<Arc<dyn Dialect>>,
    models: ArcSwapOption<Vec<serde_json::Value>>,
    bytes_seen: AtomicU64,
    tells_cached: AtomicBool,
    shares_inputs: AtomicBool,
}

/// How far a worker is trusted with work.
#[derive(Debug)]
struct Trust {
    breaker: Breaker,
    /// When it came back.
    since: Option<Millis>,
    slow_start: Millis,
}

impl Trust {
    /// How far it has started: 0 to 1.
    fn started(&self, now: Millis) -> f64 {
        match self.since {
            Some(since) if self.slow_start > Millis::ZERO => {
                ((now - since).0 / self.slow_start.0).clamp(0.0, 1.0)
            }
            _ => 1.0,
        }
    }
}

/// The work that was sent to a worker.
#[derive(Debug)]
pub struct Load {
    /// Prefill that has not produced its first token.
    pub pending: PendingWork,
    /// ρ.
    pub utilisation: Utilisation,
    /// Requests sent and not finished.
    pub in_flight: u32,
    /// Requests that other replicas have sent, as far as they are heard of.
    pub others: u32,
    /// What its prefill is taken to cost.
    pub cost: PrefillCost,
    /// What it is known to cost by now, whatever somebody has set.
    pub learned: PrefillCost,
    /// What its first tokens take beside queue and prefill, where it tells those itself.
    pub overhead: Millis,
    /// The engine's own count of its queue, as it was last believed.
    pub figure: Option<(QueueFigure, Reconciled)>,
}

impl Worker {
    /// A worker of which nothing is known yet; it is not ready.
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
            doubted: Seldom::default(),
            joined,
            source: Source::default(),
            offered: AtomicBool::new(true),
            origin: Origin::new(&spec.url, config.limits.connect_timeout, POOL_IDLE),
            load: Mutex::new(load),
            health: Mutex::new(Health::new(health.unhealthy_after, health.healthy_after)),
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

    /// The same, named by this source, which says whether it may be given work.
    #[must_use]
    pub fn named_by(mut self, source: Source, offered: bool) -> Self {
        self.source = source;
        self.offered = AtomicBool::new(offered);
        self
    }

    /// Its name, in metrics, logs and response headers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What its prefill costs.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        self.load.lock().cost
    }

    /// Its answers showed what its prefill costs. What waits there was predicted with what was believed before.
    pub fn set_cost(&self, cost: PrefillCost) {
        let pinned = self.pinned.lock();
        self.take_cost(cost, pinned.as_ref());
    }

    /// Its answers showed what their first tokens take beside queue and prefill.
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

    /// Somebody has measured what its prefill costs.
    pub fn calibrated(&self, measured: Measured) {
        *self.measured.lock() = Some(measured);
        self.set_cost(measured.cost);
    }

    /// What somebody has measured of it since the router began.
    #[must_use]
    pub fn calibration(&self) -> Option<Measured> {
        *self.measured.lock()
    }

    /// Holds what is believed to wait on it against what it says itself.
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

    /// It said whether it caches inputs of an embedding model, for which it takes no salt.
    pub fn said_sharing(&self, shares: bool) {
        self.shares_inputs.store(shares, Ordering::Relaxed);
    }

    /// Whether it caches inputs of an embedding model without a salt, by its last word. It may, until it has said anything.
    #[must_use]
    pub fn shares_inputs(&self) -> bool {
        self.shares_inputs.load(Ordering::Relaxed)
    }

    /// Takes its α for this, whatever is learned, until then; or goes back to what is learned. Returns what was set before.
    pub fn pin_alpha(&self, pin: Option<PinnedAlpha>) -> Option<PinnedAlpha> {
        self.replace_pin(&mut self.pinned.lock(), pin)
    }

    /// Goes back to what is learned if what was set was for a time, and that is over. Returns what was set.
    pub fn unpin_due(&self, now: Millis) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        // Looked at and taken away in one: somebody may be setting another one.
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

    /// α that somebody has set.
    #[must_use]
    pub fn pinned_alpha(&self) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        *self.pinned.lock()
    }

    /// Whether it may be given work: it is well and offered, and nobody holds it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_well() && self.is_offered() && self.hold() == Hold::None
    }

    /// Whether it may be given what only it can answer, which a cordon lets through.
    #[must_use]
    pub fn may_answer_its_own(&self) -> bool {
        self.is_well() && self.is_offered() && matches!(self.hold(), Hold::None | Hold::Cordoned)
    }

    /// Whether who named it says that it may be given work.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }

    /// Who named it says whether it may be given work. Returns what was said before.
    pub fn set_offered(&self, offered: bool) -> bool {
        self.offered.swap(offered, Ordering::AcqRel)
    }

    /// Whether its probes find it well.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.well.load(Ordering::Acquire) && self.hold() != Hold::Gone
    }

    /// Whether somebody keeps work from it.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.hold.get()
    }

    /// Keeps work from it, or not any more. Returns what was before; `None` if it is leaving, which is for good.
    pub fn set_hold(&self, hold: Hold) -> Option<Hold> {
        self.hold.set(hold)
    }

    /// It has nothing left, and nothing of it is known any more.
    pub(super) fn gone(&self, now: Millis) {
        self.gone_at.store(now.0 as u64, Ordering::Release);
        self.hold.set(Hold::Gone);
    }

    /// When it was gone, if it is.
    pub(super) fn gone_since(&self) -> Option<Millis> {
        (self.hold() == Hold::Gone).then(|| Millis(self.gone_at.load(Ordering::Acquire) as f64))
    }

    /// Records a probe, or a request that showed the same. Returns the new readiness if it changed.
    pub fn observe_health(&self, now: Millis, probe: Probe) -> Option<bool> {
        let mut health = self.health.lock();
        let changed = health.observe(probe);
        if changed == Some(true) {
            // What it did before it went says nothing of what it will do.
            self.with_breaker(now, |breaker| breaker.reset(now));
            self.starts_anew(now);
        }
        self.well.store(health.is_ready(), Ordering::Release);
        if changed == Some(false) {
            // It may come back with other settings.
            self.tells_cached.store(false, Ordering::Relaxed);
        }
        changed
    }

    /// How much of a counted prompt was cached, given what its whole answer says. SGLang, and vLLM for long, leave the figure
    /// out where it is zero: of a worker that has told one before, silence means that.
    #[must_use]
    pub fn cached(&self, said: Option<u64>) -> Option<u64> {
        if said.is_some() {
            self.tells_cached.store(true, Ordering::Relaxed);
            return said;
        }
        self.tells_cached.load(Ordering::Relaxed).then_some(0)
    }

    /// Bytes of answers that came from it: a worker that sends is alive, whatever its probe says.
    #[must_use]
    pub fn bytes_seen(&self) -> u64 {
        self.bytes_seen.load(Ordering::Relaxed)
    }

    /// Counts bytes of an answer.
    pub fn saw_bytes(&self, bytes: usize) {
        self.bytes_seen.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How it is told things.
    #[must_use]
    pub fn dialect(&self) -> Arc<dyn Dialect> {
        Arc::clone(&self.dialect.read())
    }

    /// Whether it can be told about conversations beside their requests.
    #[must_use]
    pub fn hears_hints(&self) -> bool {
        self.dialect.read().hears_hints()
    }

    /// Whether it can be told the objective.
    #[must_use]
    pub fn takes_objective(&self) -> bool {
        let terms = Terms {
            xi_tokens: 0.0,
            next_prompt: Tokens::ZERO,
            epoch: 0,
        };
        self.dialect.read().objective(&terms).is_some()
    }

    /// What a probe found out.
    pub fn learned(&self, dialect: Arc<dyn Dialect>, models: Option<Vec<serde_json::Value>>) {
        *self.dialect.write() = dialect;
        if let Some(models) = models {
            self.models.store(Some(Arc::new(models)));
        }
    }

    /// Its models as it lists them, if known.
    #[must_use]
    pub fn models(&self) -> Option<Arc<Vec<serde_json::Value>>> {
        self.models.load_full()
    }

    /// The longest prompt and answer that it says this model takes together; of a model that it says nothing of, what it says of
    /// another.
    #[must_use]
    pub fn context(&self, model: &str) -> Option<u64> {
        let models = self.models.load();
        let cards = models.as_ref()?.iter();
        let told = cards.filter_map(|card| Some((card["id"] == model, card["max_model_len"].as_u64()?)));
        told.max().map(|(_, length)| length)
    }

    /// Whether it serves this model; `None` if its models are not known.
    #[must_use]
    pub fn serves(&self, model: &str) -> Option<bool> {
        if !self.spec.models.is_empty() {
            return Some(self.spec.models.iter().any(|name| name == model));
        }
        let models = self.models.load();
        let models = models.as_ref()?;
        Some(models.iter().any(|card| card["id"] == model))
    }

    /// The worker as the choice sees it.
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

    /// It begins to be given work, and counts as so busy until its own work shows.
    pub(super) fn begins_as(&self, utilisation: Utilisation) {
        self.load.lock().utilisation = utilisation;
    }

    /// Its load, read under its lock.
    pub fn with_load<T>(&self, read: impl FnOnce(&Load) -> T) -> T {
        read(&self.load.lock())
    }

    /// Counts a request that goes out.
    pub(super) fn sent(&self, now: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.in_flight += 1;
        prefill.map(|work| {
            load.utilisation.add(now, work);
            load.pending.sent(now, work)
        })
    }

    /// Ends the waiting of a request whose first token came.
    pub(super) fn prefilled(&self, now: Millis, ticket: Ticket) -> Option<Millis> {
        self.load.lock().pending.first_token(now, ticket)
    }

    /// Ends the counting of a request, and its waiting if it still waits.
    pub(super) fn ended(&self, now: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        debug_assert!(load.in_flight > 0, "a request ends twice");
        load.in_flight = load.in_flight.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(now, ticket);
        }
    }

    /// Counts a request that another replica has sent, which waits for its prefill or does not any more.
    pub fn others_sent(&self, at: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.others += 1;
        prefill.map(|work| {
            load.utilisation.add(at, work);
            load.pending.sent(at, work)
        })
    }

    /// Ends the waiting of another replica's request.
    pub fn others_prefilled(&self, at: Millis, ticket: Ticket) {
        self.load.lock().pending.first_token(at, ticket);
    }

    /// Ends the counting of another replica's request, and its waiting if it still waits.
    pub fn others_ended(&self, at: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        load.others = load.others.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(at, ticket);
        }
    }

    /// What there is to say of it beside its view.
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

    /// Lets a request through, if its breaker does; `regardless` of it where there is nobody else.
    #[must_use]
    pub fn admit(&self, now: Millis, regardless: bool) -> Option<Pass> {
        if !self.is_watched.load(Ordering::Acquire) {
            return Some(Pass::Ordinary);
        }
        let pass = self.trust.lock().breaker.admit(now);
        pass.or(regardless.then_some(Pass::Ordinary))
    }

    /// Tells its breaker something.
    pub(super) fn with_breaker<T>(&self, now: Millis, tell: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut trust = self.trust.lock();
        let told = tell(&mut trust.breaker);
        let watched = trust.breaker.standing(now) != Standing::Closed || trust.started(now) < 1.0;
        self.is_watched.store(watched, Ordering::Release);
        told
    }

    /// It comes back: it is given more and more to do.
    pub(super) fn starts_anew(&self, now: Millis) {
        let mut trust = self.trust.lock();
        trust.since = Some(now);
        self.is_watched.store(true, Ordering::Release);
    }

    /// The worker's address for a path and query.
    ///
    /// # Errors
    /// If base path and path do not make a valid URI.
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
