//! The running router: everything that requests share. What runs beside them is in `upkeep`.

mod live_policy;
mod members;
mod pool_timer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use config::Config;
use discovery::DiscoveryState;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use policy::evidence::WorkerEvidence;
use policy::ids::WorkerId;
use policy::slo;
use policy::tail::Class;
use policy::units::{Millis, Tokens};
use tokio::sync::watch;
use tracing::{info, warn};

use self::pool_timer::PoolTimer;
use crate::admission::Admission;
use crate::admission::gate::Permit;
use crate::admission::limits::Charge;
use crate::bus::Bus;
use crate::decisions::Decisions;
use crate::idle::Idle;
use crate::path::stored::Stored;
use crate::reload::{self, Live, ReloadError};
use fleet::breaker::BreakerState;
use fleet::clock::Clock;
use fleet::health::Probe;
use fleet::hints::SentObjective;
use fleet::hold::Hold;
use fleet::retry_budget::RetryBudget;
use fleet::{Fleet, Worker};
use learning::feedback::{ClassState, Feedback, TailState};
use learning::knowledge::Knowledge;
use metrics::{Gauges, MetricError, Metrics, WorkerGauges};
use operator::events::Kind;
use operator::revisions::{Revision, Revisions};
use operator::{AuditError, Operator, tokens};
use protocol::error::ApiError;
use tailroute_http::body::{self, Body};
use tailroute_http::tls::{Connector, Tls, TlsError};
use tailroute_http::unread::Unread;
use tailroute_http::upstream::{self, POOL_IDLE, Reply};
use telemetry::capture::{Capture, CaptureError};
use telemetry::context::Ids;
use telemetry::logs::LevelError;
use telemetry::traces::{ExporterError, Traces};

/// Bytes that may be held of all answers as they pass, beside the first of each.
pub const MAX_COPIED_BYTES: usize = 256 << 20;
/// Idle connections kept to each worker.
const POOL_IDLE_PER_WORKER: usize = 1024;

/// Everything that requests share.
#[derive(Debug)]
pub struct App {
    /// What was configured at the start. What can change since is in [`App::live`], `policy`, `operator` and `admission`.
    pub config: Config,
    live: ArcSwap<Live>,
    /// What came of reading the configuration again.
    pub reloads: parking_lot::Mutex<reload::State>,
    /// Certificates.
    pub tls: Tls,
    /// Policy and weights in force; swapped whole.
    pub policy: Revisions,
    /// Who may change it, and what they changed.
    pub operator: Operator,
    /// The workers.
    pub fleet: Fleet,
    /// What finds others, and what it says.
    pub discovery: Arc<DiscoveryState>,
    /// What was learned of where prefixes live.
    pub knowledge: Knowledge,
    /// What was learned of costs, conversations and the tail.
    pub feedback: Feedback,
    /// Who may come in, and when.
    pub admission: Admission,
    /// What is counted.
    pub metrics: Metrics,
    /// Connections to the workers for everything else.
    pub client: Client<Connector, Body>,
    /// What may be tried again.
    pub retries: parking_lot::Mutex<RetryBudget>,
    /// Which worker keeps which response.
    pub stored: Stored,
    /// Names requests that have none.
    pub ids: Ids,
    /// The clock.
    pub clock: Clock,
    /// Recent decisions.
    pub decisions: Decisions,
    /// Turns are written down here, if they are.
    pub capture: Option<Capture>,
    /// Receives the traces of requests when they end, if they are traced.
    pub traces: Option<Arc<Traces>>,
    /// Other replicas, if there are to be any.
    pub bus: Option<Arc<Bus>>,
    /// Held while a snapshot is read or written: one after the other.
    pub snapshot: parking_lot::Mutex<()>,
    /// Whether the router is idle.
    pub idle: Arc<Idle>,
    sequence: AtomicU64,
    in_flight: AtomicUsize,
    /// Bytes of heads that are being read, and of bodies until their answers begin.
    unread: Arc<AtomicUsize>,
    /// Bytes that are held of answers as they pass.
    copied: Arc<AtomicUsize>,
    draining: AtomicBool,
    cut: watch::Sender<bool>,
}

/// Why a router cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A metric that is not in the table of metrics.
    #[error("the metrics cannot be registered")]
    Metrics(#[from] MetricError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The exporter of traces.
    #[error(transparent)]
    Traces(#[from] ExporterError),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

/// What came of another configuration.
#[derive(Debug)]
pub struct Reconfigured {
    /// Sections that have changed and need a restart.
    pub needs_restart: Vec<&'static str>,
    /// The policy before and after, if the configuration's has changed.
    pub policy: Option<(Arc<Revision>, Arc<Revision>)>,
}

/// A place among the requests in flight; dropping it frees the place, and lets the next one in that waits for it.
#[derive(Debug)]
pub struct RequestPermit {
    app: Arc<App>,
    /// It was freed before it was dropped.
    is_free: bool,
    /// What was charged for the request before it was known.
    pub charge: Charge,
    /// Its place behind the gate, if there is one.
    pub permit: Option<Permit>,
}

impl RequestPermit {
    /// The request is on its way to a worker.
    pub fn sent(&mut self) {
        self.charge.sent();
        if let Some(permit) = &mut self.permit {
            permit.sent();
        }
    }

    /// The next request may have it; what was charged is still this one's.
    pub fn free(&mut self) {
        if !std::mem::replace(&mut self.is_free, true) {
            self.permit = None;
            self.app.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.free();
    }
}

impl App {
    /// A router that has not been asked anything yet.
    ///
    /// # Errors
    /// If the metrics cannot be registered, or a capture was asked for and cannot be written.
    pub fn new(config: Config) -> Result<Arc<Self>, StartError> {
        let metrics = Metrics::new()?;
        metrics.name_workers(config.workers.iter().map(|worker| &*worker.name));
        let capture = config.capture.as_ref();
        let capture = capture.map(|capture| Capture::start(capture, Arc::new(metrics.capture())));
        let bus = config.fleet.as_ref();
        let bus = bus.map(|fleet| Bus::new(fleet, metrics.bus()));
        let traces = config.traces.as_ref();
        let traces = traces.map(|traces| Traces::new(traces, Arc::new(metrics.traces())));
        let routing = &config.routing;
        let capacities: Vec<_> = config
            .workers
            .iter()
            .map(|worker| (worker.capacity, worker.block_size))
            .collect();
        let index_bytes = config.index.max_bytes.get() as u64;
        let window = routing.utilisation_window;
        let knowledge = Knowledge::new(index_bytes, &capacities, routing.tokens_per_byte, window);
        for (slot, spec) in (0..).zip(&config.workers) {
            if !spec.capacity_is_known {
                knowledge.learn_capacity(WorkerId(slot));
            }
        }
        let worker = |(slot, spec): (u32, &config::Worker)| {
            Arc::new(Worker::new(WorkerId(slot), spec.clone(), &config, Millis::ZERO))
        };
        let fleet = Fleet::new((0..).zip(&config.workers).map(worker).collect());
        let clock = Clock::start();
        let tls = Tls::load(&config)?;
        let idle = Arc::<Idle>::default();
        Ok(Arc::new(Self {
            live: ArcSwap::from_pointee(Live::of(&config)),
            reloads: parking_lot::Mutex::new(reload::State {
                generation: 1,
                ..reload::State::default()
            }),
            admission: Admission::new(&config, clock.now()),
            policy: Revisions::new(routing.settings()),
            operator: Operator::new(&config.admin)?,
            fleet,
            discovery: Arc::new(DiscoveryState::new(
                &config.discovery,
                metrics.discovery_observer(),
            )),
            knowledge,
            feedback: Feedback::new(&config),
            metrics,
            decisions: Decisions::new(config.explain.max_bytes),
            bus: bus.map(Arc::new),
            capture: capture.transpose()?,
            traces: traces.transpose()?,
            client: client(&config, &tls, &idle),
            retries: parking_lot::Mutex::new(RetryBudget::new(
                config.failure.retry_share,
                config.failure.retry_floor_per_s,
            )),
            tls,
            stored: Stored::default(),
            ids: Ids::of_this_process(),
            clock,
            snapshot: parking_lot::Mutex::new(()),
            idle,
            sequence: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            unread: Arc::default(),
            copied: Arc::default(),
            draining: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            config,
        }))
    }

    /// What can change while the router serves.
    #[must_use]
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Puts another configuration in force, as far as that can be done while the router serves. Returns the sections that
    /// have changed and need a restart, and the policy before and after where the configuration's has changed.
    ///
    /// # Errors
    /// If its certificates cannot be used; then nothing has changed.
    pub fn reconfigure(&self, config: &Config) -> Result<Reconfigured, ReloadError> {
        reload::stays_closed(self, config)?;
        self.tls.reload(config)?;
        let policy = self.configure_policy(config.routing.settings());
        self.operator
            .tokens
            .store(Arc::new(tokens::Tokens::new(&config.admin)));
        self.admission.reload(config, self.clock.now());
        self.live.store(Arc::new(Live::of(config)));
        // `NotOurs` is no error: the level applies only to a log that the router has started.
        if let Err(error @ LevelError::Wrong(_)) = telemetry::logs::configure(&config.log.level) {
            warn!(%error, "cannot apply log.level");
        }
        if let (Some(traces), Some(settings)) = (&self.traces, &config.traces) {
            traces.send_headers(&settings.headers);
        }
        Ok(Reconfigured {
            needs_restart: reload::needs_restart(&self.config, config),
            policy,
        })
    }

    /// A worker may be given work by now, or may not any more.
    pub fn worker_changed(&self, worker: &Worker) {
        let now = serde_json::json!({ "ready": worker.is_ready(), "well": worker.is_well(), "hold": worker.hold() });
        self.operator.events.tell(Kind::Worker, worker.name(), now);
    }

    /// NATS, by which replicas hear of each other, came or went.
    pub fn bus_changed(&self, bus: &Bus) {
        let now = serde_json::json!({ "connected": bus.is_up() });
        self.operator.events.tell(Kind::Replicas, &bus.name, now);
    }

    /// A worker's cache events are followed.
    pub fn evidence_live(&self, worker: &Worker) {
        let now = serde_json::json!({ "followed": true });
        self.operator.events.tell(Kind::Evidence, worker.name(), now);
    }

    /// A worker's cache events are not followed any more.
    pub fn evidence_lost(&self, worker: &Worker, error: &dyn std::error::Error) {
        let now = serde_json::json!({ "followed": false, "error": error.to_string() });
        self.operator.events.tell(Kind::Evidence, worker.name(), now);
    }

    /// A worker's breaker has opened.
    pub fn breaker_opened(&self, worker: &Worker) {
        self.metrics.breaker_opened(worker.name());
        let now = serde_json::json!({ "breaker": BreakerState::Open.as_str() });
        self.operator.events.tell(Kind::Breaker, worker.name(), now);
    }

    /// A worker's breaker has closed.
    pub fn breaker_closed(&self, worker: &Worker) {
        let now = serde_json::json!({ "breaker": BreakerState::Closed.as_str() });
        self.operator.events.tell(Kind::Breaker, worker.name(), now);
    }

    /// What a request is told that found no worker: whether they fail, or somebody holds them all.
    #[must_use]
    pub fn nobody_ready(&self) -> ApiError {
        let workers = self.fleet.workers();
        let held = |worker: &Arc<Worker>| matches!(worker.hold(), Hold::Cordoned | Hold::Draining);
        if !workers.is_empty() && workers.iter().all(held) {
            ApiError::AllWorkersHeld
        } else {
            ApiError::NoWorkerReady
        }
    }

    /// Sends a turn to a worker. Dropping what comes back hangs up.
    #[must_use]
    pub fn send(&self, worker: &Worker, request: Request<Bytes>) -> Reply {
        match &worker.origin {
            Some(origin) => origin.send(request),
            None => Reply::hyper(self.client.request(request.map(body::full))),
        }
    }

    /// The number of the next decision.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// A place for one more request, if there is one.
    #[must_use]
    pub fn place(self: &Arc<Self>) -> Option<RequestPermit> {
        self.idle.requested(self.clock.now());
        let max = self.live().limits.max_in_flight.get();
        let place = RequestPermit {
            app: Arc::clone(self),
            is_free: false,
            charge: Charge::default(),
            permit: None,
        };
        // Counted before the check, so that two requests cannot share the last place; `place` takes it back.
        if self.in_flight.fetch_add(1, Ordering::AcqRel) < max {
            Some(place)
        } else {
            None
        }
    }

    /// Whether a place can be had, for a request whose body is still to be read.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.in_flight() < self.live().limits.max_in_flight.get()
    }

    /// Room for what is going to be read of a client's requests.
    #[must_use]
    pub fn unread(&self) -> Unread {
        Unread::new(
            Arc::clone(&self.unread),
            self.live().limits.max_unread_bytes.get(),
        )
    }

    /// Room for what is held of a worker's answer as it passes.
    #[must_use]
    pub fn copied(&self) -> Unread {
        Unread::new(Arc::clone(&self.copied), MAX_COPIED_BYTES)
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// From now on the router is not ready, and closes connections as they become idle.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the router is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether the router has just started, and waits for what other replicas know.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        let bus = self.bus.as_ref();
        bus.is_some_and(|bus| bus.is_joining(self.clock.now()))
    }

    /// The drain limit is reached: what is still answered ends now.
    pub fn cut_off(&self) {
        self.cut.send_replace(true);
    }

    /// Ends when what is still answered has to.
    pub fn when_cut_off(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut cut = self.cut.subscribe();
        async move {
            // An error means that the router is gone, and everybody with it.
            let _ = cut.wait_for(|cut| *cut).await;
        }
    }

    /// Records whether a worker is well and acts on the change that it makes, if any.
    pub fn note_health(&self, worker: &Worker, probe: Probe) {
        let now = self.clock.now();
        let stood = worker.condition(now).breaker;
        let changed = worker.observe_health(now, probe);
        if changed == Some(true) && stood != BreakerState::Closed {
            self.breaker_closed(worker);
        }
        if changed.is_some() {
            self.worker_changed(worker);
        }
        match changed {
            Some(true) => {
                self.fleet
                    .begins(worker, now, self.config.routing.utilisation_window);
                info!(worker = worker.name(), "ready");
            }
            Some(false) => {
                warn!(
                    worker = worker.name(),
                    "not ready: it fails its probes or refuses connections"
                );
                // It may come back empty, and what it told us cannot be checked.
                self.knowledge.forget(worker.id);
                self.knowledge.evidence(worker.id, WorkerEvidence::forget);
            }
            None => {}
        }
    }

    /// Whether a worker takes hints between requests, so that ends are given up when it needs room.
    #[must_use]
    pub fn makes_room_on(&self, worker: &Worker) -> bool {
        self.config.hints.enabled && self.config.hints.out_of_band && worker.hears_hints()
    }

    /// The budget for requests that carry none: the free tail of a second turn. A worker that takes hints between requests
    /// has no free tail.
    #[must_use]
    pub fn objective_for(&self, worker: &Worker) -> SentObjective {
        let next_prompt = self.next_prompt();
        let tail = if self.makes_room_on(worker) {
            Tokens::ZERO
        } else {
            let second_turn = Class::of(2, next_prompt, false);
            self.feedback.free_tail(worker.id, second_turn)
        };
        SentObjective {
            xi_tokens: (next_prompt + tail).as_f64(),
            next_prompt_tokens: next_prompt.0,
        }
    }

    /// What is true now, for the metrics page.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let habits = {
            let conversations = self.feedback.conversations.lock();
            let all = ClassState::of(None, conversations.habits.all());
            let mut classes = ClassState::keyless(&conversations.habits);
            classes.insert(0, all);
            classes
        };
        Gauges {
            workers: self
                .fleet
                .present()
                .iter()
                .map(|worker| self.worker_gauges(worker))
                .collect(),
            index: self.knowledge.index_stats(),
            losses: self.knowledge.losses(),
            slo_share: self.live().objective.share,
            tail: TailState::of(&self.feedback, self.config.hints.enabled),
            habits,
            lessons_dropped: self.feedback.dropped(),
            policy_revision: self.policy.load().revision,
            audit_failures: self.operator.audit.failures(),
            admission: self.admission.gate.counts(),
            discovery: self.discovery.standings(),
            bus: self.bus.as_ref().map(|bus| bus.gauges()),
            log_dropped: telemetry::logs::writer::dropped(),
            tasks: tokio::runtime::Handle::try_current()
                .map_or(0, |runtime| runtime.metrics().num_alive_tasks() as u64),
        }
    }

    /// What is true of a worker now.
    #[must_use]
    pub fn worker_gauges(&self, worker: &Worker) -> WorkerGauges {
        let now = self.clock.now();
        let silent = self.feedback.tail.lock().silent_on(worker.id);
        let costs = self.feedback.costs.lock().state(worker.id);
        let resident = self.knowledge.held(worker.id);
        let kv_live = self.knowledge.stored(worker.id).is_some();
        let told = self
            .knowledge
            .evidence(worker.id, |evidence| (evidence.blocks(), evidence.bindings()));
        let (blocks, kv_bindings) = told.unwrap_or_default();
        let breaker = worker.condition(now).breaker;
        let ttft_errors = worker.errors.lock().quantiles();
        worker.with_load(|load| {
            let utilisation = load.utilisation.at(now);
            let xi = slo::xi_tokens(&load.cost, self.live().objective.ttft, Millis::ZERO, Tokens::ZERO);
            WorkerGauges {
                name: worker.name().to_owned(),
                ready: worker.is_ready(),
                breaker,
                ttft_errors,
                in_flight: load.in_flight,
                wait: load.pending.wait(now),
                utilisation,
                resident,
                kv_live,
                kv_blocks: blocks as u64,
                kv_bindings,
                cost: load.cost,
                overhead: load.overhead,
                cost_error: Millis(costs.map_or(0.0, |costs| costs.error_ms)),
                xi_tokens: xi.min(1e9),
                silent: silent as u64,
                queue: load.figure,
            }
        })
    }

    /// Q̂ of all traffic.
    #[must_use]
    pub fn next_prompt(&self) -> Tokens {
        if self.config.learning.habits {
            self.feedback.conversations.lock().habits.all().next_prompt().0
        } else {
            self.live().objective.next_prompt
        }
    }
}

fn client(config: &Config, tls: &Tls, idle: &Arc<Idle>) -> Client<Connector, Body> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let connect_timeout = config.limits.connect_timeout;
    let pool_timer = PoolTimer {
        idle: Arc::clone(idle),
        timer: TokioTimer::new(),
    };
    Client::builder(TokioExecutor::new())
        .pool_timer(pool_timer)
        .timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_IDLE_PER_WORKER)
        .http1_max_buf_size(upstream::MAX_HEAD_BYTES)
        .build(tls.connector(connector, connect_timeout))
}
