//! The known facts about a worker's engine: one place, where each fact has its value, its source, its age, and the time
//! of the next query.
//!
//! | fact | learned from | asked again |
//! |---|---|---|
//! | models | configuration; `GET /v1/models` | with each probe; at once when a request contradicts the list |
//! | dialect, cache policy, shared inputs | configuration; `GET /v1/tailroute`, `GET /server_info` | every `health.facts_interval_s`; at once after a restart |
//! | capacity, block size | configuration; these documents and `GET /metrics` | the same |
//! | sleep | `GET /metrics`; `GET /is_sleeping` | with each reading of the queue; with each probe |
//! | start of the process | `GET /metrics` | with each reading of the queue |
//!
//! Unknown is neither yes nor no. An answer that cannot be read keeps the value, is reported with its error, and is
//! repeated after growing pauses ([`Schedule`]). `upkeep` sends the queries; this module has no I/O.

mod fact;
mod models;
mod schedule;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, RwLock};
use policy::units::Millis;
use tokio::sync::{Notify, watch};

pub use self::fact::{Fact, FactChange, FactReport, FactSource, Known, Query};
pub use self::models::{Listed, Serves};
pub use self::schedule::Schedule;
use crate::dialect::{self, Dialect};
use crate::health::ProbeFailure;

/// Time after which the next query for the models ends a denial that their list contradicts.
const REFUTED_FOR: Millis = Millis(30_000.0);
/// Largest number of a list's models that are shown.
const SHOWN_MODELS: usize = 32;
/// Largest number of denied models that are kept.
const MOST_REFUTED: usize = 16;

/// The facts of one worker.
#[derive(Debug)]
pub struct EngineFacts {
    /// Names of the configured models, in order. If there are any, the list does not decide what the worker serves.
    configured: Vec<String>,
    models: ArcSwapOption<Listed>,
    refuted: RwLock<Vec<(Box<str>, Millis)>>,
    has_refuted: AtomicBool,
    dialect: RwLock<Arc<dyn Dialect>>,
    /// Whether the dialect carries hints outside of requests, which each turn asks several times.
    hears_hints: AtomicBool,
    shares_inputs: AtomicBool,
    asleep: AtomicBool,
    ledger: Mutex<Ledger>,
    wake: Notify,
    models_done: watch::Sender<u64>,
    settings_done: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ledger {
    known: Vec<(Fact, Known)>,
    models: Schedule,
    settings: Schedule,
    /// Start of the engine's process, in seconds since 1970; `None` if it is not known.
    started: Option<f64>,
}

impl Ledger {
    fn schedule(&mut self, query: Query) -> &mut Schedule {
        match query {
            Query::Models => &mut self.models,
            Query::Settings => &mut self.settings,
        }
    }

    fn learn(&mut self, fact: Fact, known: Known) -> FactChange {
        let Some((_, before)) = self.known.iter_mut().find(|(of, _)| *of == fact) else {
            self.known.push((fact, known));
            return FactChange::First;
        };
        let is_same = before.value == known.value;
        *before = known;
        if is_same {
            FactChange::Same
        } else {
            FactChange::Changed
        }
    }
}

impl EngineFacts {
    /// Creates the facts that the configuration states.
    #[must_use]
    pub fn new(spec: &config::Worker, now: Millis) -> Self {
        let mut configured = spec.models.clone();
        configured.sort_unstable();
        let dialect = dialect::before_probe(spec);
        let facts = Self {
            configured,
            models: ArcSwapOption::empty(),
            refuted: RwLock::default(),
            has_refuted: AtomicBool::new(false),
            hears_hints: AtomicBool::new(dialect.hears_hints()),
            dialect: RwLock::new(dialect),
            shares_inputs: AtomicBool::new(true),
            asleep: AtomicBool::new(false),
            ledger: Mutex::default(),
            wake: Notify::new(),
            models_done: watch::Sender::new(0),
            settings_done: watch::Sender::new(0),
        };
        if !spec.models.is_empty() {
            facts.learn(now, Fact::Models, FactSource::Configured, shown(&spec.models));
        }
        if spec.capacity_is_known {
            let tokens = spec.capacity.0.to_string();
            facts.learn(now, Fact::Capacity, FactSource::Configured, tokens);
        }
        facts
    }

    /// Records a fact's value as text. The typed value is stored by its own function, or where it is used.
    pub fn learn(&self, now: Millis, fact: Fact, source: FactSource, value: String) -> FactChange {
        let known = Known {
            value,
            source,
            confirmed: now,
        };
        self.ledger.lock().learn(fact, known)
    }

    /// Returns the value of a fact, if known.
    #[must_use]
    pub fn known(&self, fact: Fact) -> Option<Known> {
        let ledger = self.ledger.lock();
        let found = ledger.known.iter().find(|(of, _)| *of == fact);
        found.map(|(_, known)| known.clone())
    }

    /// Returns every fact that is known, and the models in any case.
    #[must_use]
    pub fn report(&self) -> Vec<FactReport> {
        const ALL: [(Fact, Option<Query>); 8] = [
            (Fact::Models, Some(Query::Models)),
            (Fact::Dialect, Some(Query::Settings)),
            (Fact::CachePolicy, Some(Query::Settings)),
            (Fact::Capacity, Some(Query::Settings)),
            (Fact::BlockSize, Some(Query::Settings)),
            (Fact::SharedInputs, Some(Query::Settings)),
            (Fact::Sleep, None),
            (Fact::Start, None),
        ];
        let mut ledger = self.ledger.lock();
        let mut report = |(fact, query): (Fact, Option<Query>)| {
            let found = ledger.known.iter().find(|(of, _)| *of == fact);
            let known = found.map(|(_, known)| known.clone());
            let is_configured = known
                .as_ref()
                .is_some_and(|known| known.source == FactSource::Configured);
            let schedule = query
                .filter(|_| !is_configured)
                .map(|query| ledger.schedule(query));
            (known.is_some() || fact == Fact::Models).then(|| FactReport {
                fact,
                known,
                next: schedule.as_ref().and_then(|schedule| schedule.next()),
                failing: schedule.and_then(|schedule| schedule.failing()),
            })
        };
        ALL.into_iter().filter_map(&mut report).collect()
    }
}

fn shown(names: &[String]) -> String {
    names[..names.len().min(SHOWN_MODELS)].join(", ")
}

// Models.
impl EngineFacts {
    /// Records the list of models that the engine gives. Returns the names added and removed; `None` if it is the first
    /// list.
    pub fn learn_models(&self, now: Millis, listed: Listed) -> Option<[Vec<String>; 2]> {
        let listed = Arc::new(listed);
        let before = self.models.swap(Some(Arc::clone(&listed)));
        self.forget_refuted(|model, until| until > now && listed.has(model));
        if self.configured.is_empty() {
            self.learn(now, Fact::Models, FactSource::Listed, shown(listed.names()));
        }
        let before = before?;
        let without = |all: &Listed, others: &Listed| -> Vec<String> {
            let new = all.names().iter().filter(|name| !others.has(name));
            new.cloned().collect()
        };
        Some([without(&listed, &before), without(&before, &listed)])
    }

    /// Returns the models that the engine lists, if known.
    #[must_use]
    pub fn models(&self) -> Option<Arc<Listed>> {
        self.models.load_full()
    }

    /// Returns the names of the models that the engine serves, in order; `None` if they are not known.
    #[must_use]
    pub fn model_names(&self) -> Option<Vec<String>> {
        if !self.configured.is_empty() {
            return Some(self.configured.clone());
        }
        Some(self.models.load().as_ref()?.names().to_vec())
    }

    /// Returns whether the engine serves this model, by its list and its own denials.
    #[must_use]
    pub fn serves(&self, model: &str) -> Serves {
        if self.is_refuted(model) {
            return Serves::Denied;
        }
        let listed = self.models.load();
        if self.configured.is_empty() {
            return listed
                .as_ref()
                .map_or(Serves::Unknown, |listed| listed.serves(model));
        }
        let has_adapter = |base: &str, adapter: &str| {
            let listed = listed.as_ref();
            listed.is_some_and(|listed| listed.has_adapter(base, adapter))
        };
        models::serves(&self.configured, model, has_adapter)
    }

    /// Records that the engine denied having a model. The denial holds until a list without the name arrives, or for a
    /// while.
    pub fn refute(&self, now: Millis, model: &str) {
        let mut refuted = self.refuted.write();
        refuted.retain(|(name, _)| &**name != model);
        if refuted.len() >= MOST_REFUTED {
            refuted.remove(0);
        }
        refuted.push((model.into(), now + REFUTED_FOR));
        self.has_refuted.store(true, Ordering::Release);
    }

    /// Returns whether the engine denied having this model.
    #[must_use]
    pub fn is_refuted(&self, model: &str) -> bool {
        self.has_refuted.load(Ordering::Acquire)
            && self.refuted.read().iter().any(|(name, _)| &**name == model)
    }

    fn forget_refuted(&self, stays: impl Fn(&str, Millis) -> bool) {
        if self.has_refuted.load(Ordering::Acquire) {
            let mut refuted = self.refuted.write();
            refuted.retain(|(name, until)| stays(name, *until));
            self.has_refuted.store(!refuted.is_empty(), Ordering::Release);
        }
    }
}

// Dialect, inputs, sleep and start.
impl EngineFacts {
    #[must_use]
    pub fn dialect(&self) -> Arc<dyn Dialect> {
        Arc::clone(&self.dialect.read())
    }

    /// Returns whether the dialect carries hints outside of requests.
    #[must_use]
    pub fn hears_hints(&self) -> bool {
        self.hears_hints.load(Ordering::Relaxed)
    }

    pub fn learn_dialect(&self, now: Millis, found: Arc<dyn Dialect>, source: FactSource) -> FactChange {
        let name = found.name().to_owned();
        // Dialects of one name may differ in what they carry.
        let differs = {
            let mut dialect = self.dialect.write();
            let differs = format!("{:?}", *dialect) != format!("{found:?}");
            self.hears_hints.store(found.hears_hints(), Ordering::Relaxed);
            *dialect = found;
            differs
        };
        match self.learn(now, Fact::Dialect, source, name) {
            FactChange::Same if differs => FactChange::Changed,
            change => change,
        }
    }

    /// Records whether the engine caches inputs of an embedding model, which take no salt.
    pub fn learn_shared_inputs(&self, now: Millis, shares: bool) -> FactChange {
        self.shares_inputs.store(shares, Ordering::Relaxed);
        self.learn(now, Fact::SharedInputs, FactSource::Probed, shares.to_string())
    }

    /// Returns whether the engine caches inputs of an embedding model without a salt; true until the engine has
    /// reported it.
    #[must_use]
    pub fn shares_inputs(&self) -> bool {
        self.shares_inputs.load(Ordering::Relaxed)
    }

    /// Records whether the engine sleeps.
    pub fn learn_sleep(&self, now: Millis, asleep: bool, source: FactSource) -> FactChange {
        self.asleep.store(asleep, Ordering::Release);
        let value = if asleep { "asleep" } else { "awake" };
        match self.learn(now, Fact::Sleep, source, value.to_owned()) {
            FactChange::First if asleep => FactChange::Changed,
            change => change,
        }
    }

    /// Returns whether the engine is known to sleep.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    /// Records when the engine's process started, in seconds since 1970. Returns whether it has restarted: the time is
    /// later than all earlier ones. Several processes behind one address report different times in turn.
    pub fn learn_start(&self, now: Millis, started: f64) -> bool {
        let mut ledger = self.ledger.lock();
        let is_later = ledger.started.is_some_and(|before| started > before + 1.0);
        if is_later || ledger.started.is_none() {
            ledger.started = Some(started);
        }
        let known = Known {
            value: format!("{:.0}", ledger.started.unwrap_or(started)),
            source: FactSource::Metrics,
            confirmed: now,
        };
        ledger.learn(Fact::Start, known);
        is_later
    }
}

// Queries.
impl EngineFacts {
    /// Makes every query due, for a new worker or a restarted engine. Since another engine may run there, forgets all
    /// facts but the models, a configured capacity, and the dialect in use.
    pub fn begin(&self, now: Millis) {
        self.asleep.store(false, Ordering::Release);
        self.shares_inputs.store(true, Ordering::Relaxed);
        self.forget_refuted(|_, _| false);
        let mut ledger = self.ledger.lock();
        ledger.known.retain(|(fact, known)| match fact {
            Fact::Models => true,
            Fact::Capacity => known.source == FactSource::Configured,
            _ => false,
        });
        ledger.started = None;
        ledger.models.begin(now);
        ledger.settings.begin(now);
        drop(ledger);
        self.wake.notify_one();
    }

    /// Stops the queries until [`EngineFacts::begin`], because the engine is down.
    pub fn pause(&self) {
        let mut ledger = self.ledger.lock();
        ledger.models.pause();
        ledger.settings.pause();
    }

    /// Returns whether a query is due.
    #[must_use]
    pub fn is_due(&self, query: Query, now: Millis) -> bool {
        self.ledger.lock().schedule(query).is_due(now)
    }

    /// Returns when the next query is due; `None` while they are paused.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        let ledger = self.ledger.lock();
        let both = [ledger.models.next(), ledger.settings.next()];
        both.into_iter().flatten().reduce(Millis::min)
    }

    /// Waits until the schedule has changed.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Records that a query is sent.
    pub fn asked(&self, query: Query) {
        self.ledger.lock().schedule(query).asked();
    }

    /// Records that a query was answered, and when to repeat it. Returns the failure that the answer ends.
    pub fn answered(&self, query: Query, now: Millis, interval: Millis) -> Option<ProbeFailure> {
        let mut ledger = self.ledger.lock();
        let ended = ledger.schedule(query).answered(now, interval);
        drop(ledger);
        self.done(query);
        ended
    }

    /// Records that a query was not answered, or that its answer is unreadable. The value is kept, and the query is
    /// repeated after a pause that grows from `shortest` to `longest`. Returns whether this is the first failure since
    /// an answer.
    pub fn failed(&self, query: Query, now: Millis, error: String, [shortest, longest]: [Millis; 2]) -> bool {
        self.forget_refuted(|_, until| until > now);
        let mut ledger = self.ledger.lock();
        let is_first = ledger.schedule(query).failed(now, error, [shortest, longest]);
        drop(ledger);
        self.done(query);
        is_first
    }

    /// Makes the query for the models due at once, as often as a small allowance permits. Returns the number of the
    /// answer to wait for; `None` while the queries are paused.
    pub fn doubt(&self, now: Millis) -> Option<u64> {
        let number = self.ledger.lock().models.doubt(now)?;
        self.wake.notify_one();
        Some(number)
    }

    /// Waits for the answer with this number, or for a failure in its place.
    pub async fn wait_for_answer(&self, query: Query, number: u64) {
        let mut done = self.counter(query).subscribe();
        // The sender is in `self`, so the channel is open.
        let _ = done.wait_for(|done| *done >= number).await;
    }

    /// Returns the number of the next answer to a query that is sent from now on.
    #[must_use]
    pub fn next_number(&self, query: Query) -> u64 {
        self.ledger.lock().schedule(query).sent() + 1
    }

    fn counter(&self, query: Query) -> &watch::Sender<u64> {
        match query {
            Query::Models => &self.models_done,
            Query::Settings => &self.settings_done,
        }
    }

    fn done(&self, query: Query) {
        let sent = self.ledger.lock().schedule(query).sent();
        self.counter(query).send_replace(sent);
    }
}
