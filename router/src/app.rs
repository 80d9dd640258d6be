//! The running router: everything that requests share. What runs beside them is in `upkeep`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use config::Config;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use policy::evidence::WorkerEvidence;
use policy::ids::WorkerId;
use policy::route::Settings;
use policy::slo;
use policy::units::{Millis, Tokens};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::body::Body;
use crate::capture::{Capture, CaptureError};
use crate::clock::Clock;
use crate::feedback::{ClassState, Feedback};
use crate::fleet::hints::Told;
use crate::fleet::{Fleet, Worker};
use crate::knowledge::Knowledge;
use crate::metrics::{Gauges, Metrics, WorkerGauges};

/// Idle connections kept to each worker.
const POOL_IDLE_PER_WORKER: usize = 1024;
/// Largest buffer for a worker's response head.
const UPSTREAM_HEAD_BYTES: usize = 512 * 1024;

/// Everything that requests share.
#[derive(Debug)]
pub struct App {
    /// What was configured.
    pub config: Config,
    /// Policy and weights in force; swapped whole.
    pub settings: ArcSwap<Settings>,
    /// The workers.
    pub fleet: Fleet,
    /// What was learned of where prefixes live.
    pub knowledge: Knowledge,
    /// What was learned of costs, conversations and the tail.
    pub feedback: Feedback,
    /// What is counted.
    pub metrics: Metrics,
    /// Connections to the workers.
    pub client: Client<HttpConnector, Body>,
    /// The clock.
    pub clock: Clock,
    /// Turns are written down here, if they are.
    pub capture: Option<Capture>,
    /// Held while a snapshot is read or written: one after the other.
    pub snapshot: parking_lot::Mutex<()>,
    sequence: AtomicU64,
    in_flight: AtomicUsize,
    draining: AtomicBool,
    cut: watch::Sender<bool>,
}

/// Why a router cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two metrics of one name.
    #[error("the metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// A place among the requests in flight; dropping it frees the place.
#[derive(Debug)]
pub struct Place(Arc<App>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl App {
    /// A router that has not been asked anything yet.
    ///
    /// # Errors
    /// If the metrics cannot be registered, or a capture was asked for and cannot be written.
    pub fn new(config: Config) -> Result<Arc<Self>, StartError> {
        let metrics = Metrics::new()?;
        let capture = config.capture.as_ref();
        let capture = capture.map(|capture| Capture::start(capture, metrics.captured()));
        let routing = &config.routing;
        let capacities: Vec<_> = config
            .workers
            .iter()
            .map(|worker| (worker.capacity, worker.block_size))
            .collect();
        let index_bytes = config.index.max_bytes.get() as u64;
        let knowledge = Knowledge::new(index_bytes, &capacities, routing.tokens_per_byte);
        let worker = |(slot, spec): (u32, &config::Worker)| {
            Arc::new(Worker::new(
                WorkerId(slot),
                spec.clone(),
                routing.utilisation_window,
                &config.health,
            ))
        };
        let fleet = Fleet::new((0..).zip(&config.workers).map(worker).collect());
        Ok(Arc::new(Self {
            settings: ArcSwap::from_pointee(routing.settings()),
            fleet,
            knowledge,
            feedback: Feedback::new(&config),
            metrics,
            capture: capture.transpose()?,
            client: client(&config),
            clock: Clock::start(),
            snapshot: parking_lot::Mutex::new(()),
            sequence: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            config,
        }))
    }

    /// The number of the next decision.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// A place for one more request, if there is one.
    #[must_use]
    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let max = self.config.limits.max_in_flight.get();
        let place = Place(Arc::clone(self));
        // Counted before the check, so that two requests cannot share the last place; `place` takes it back.
        if self.in_flight.fetch_add(1, Ordering::AcqRel) < max {
            Some(place)
        } else {
            None
        }
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
    pub fn note_health(&self, worker: &Worker, healthy: bool) {
        match worker.observe_health(healthy) {
            Some(true) => info!(worker = worker.name(), "ready"),
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

    /// The budget for requests on a worker that carry none: as much of the free tail as is given away now, of an idle
    /// worker and a conversation without history.
    #[must_use]
    pub fn objective_for(&self, worker: &Worker) -> Told {
        let now = self.clock.now();
        let (cost, utilisation) = worker.with_load(|load| (load.cost, load.utilisation.at(now)));
        let xi = slo::xi_tokens(&cost, self.config.objective.ttft, Millis::ZERO, Tokens::ZERO);
        let next_prompt = self.next_prompt();
        let tail = self.feedback.rule().tail(xi, next_prompt, utilisation);
        // Without a free tail ξ is what the cost says, so that the budget never reaches past the whole.
        let xi_tokens = if tail > Tokens::ZERO {
            (next_prompt + tail).as_f64()
        } else {
            xi.min(next_prompt.as_f64())
        };
        Told {
            xi_tokens,
            next_prompt_tokens: next_prompt.0,
        }
    }

    /// What is true now, for the metrics page.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let now = self.clock.now();
        let rule = self.feedback.rule();
        let next_prompt = self.next_prompt();
        let worker = |worker: &Arc<Worker>| {
            let costs = self.feedback.costs.lock().state(worker.id);
            let resident = self.knowledge.held(worker.id);
            let kv_live = self.knowledge.stored(worker.id).is_some();
            let told = self
                .knowledge
                .evidence(worker.id, |evidence| (evidence.blocks(), evidence.bindings()));
            let (blocks, kv_bindings) = told.unwrap_or_default();
            worker.with_load(|load| {
                let utilisation = load.utilisation.at(now);
                let xi = slo::xi_tokens(&load.cost, self.config.objective.ttft, Millis::ZERO, Tokens::ZERO);
                WorkerGauges {
                    name: worker.name().to_owned(),
                    ready: worker.is_ready(),
                    in_flight: load.in_flight,
                    wait: load.pending.wait(now),
                    utilisation,
                    resident,
                    kv_live,
                    kv_blocks: blocks as u64,
                    kv_bindings,
                    cost: load.cost,
                    cost_error: Millis(costs.map_or(0.0, |costs| costs.error_ms)),
                    gate: rule.gate(utilisation),
                    xi_tokens: xi.min(1e9),
                    tail_tokens: rule.tail(xi, next_prompt, utilisation).as_f64(),
                    queue: load.figure,
                }
            })
        };
        let habits = {
            let conversations = self.feedback.conversations.lock();
            let all = ClassState::of(None, conversations.habits.all());
            let mut classes = ClassState::keyless(&conversations.habits);
            classes.insert(0, all);
            classes
        };
        Gauges {
            workers: self.fleet.workers().iter().map(worker).collect(),
            index: self.knowledge.index_stats(),
            losses: self.knowledge.losses(),
            rule,
            controller: self.feedback.controller.lock().state(),
            habits,
            lessons_dropped: self.feedback.dropped(),
        }
    }

    /// Q̂ of all traffic.
    #[must_use]
    pub fn next_prompt(&self) -> Tokens {
        if self.config.learning.habits {
            self.feedback.conversations.lock().habits.all().next_prompt().0
        } else {
            self.config.objective.next_prompt
        }
    }
}

fn client(config: &Config) -> Client<HttpConnector, Body> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(config.limits.connect_timeout));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(std::time::Duration::from_secs(60))
        .pool_max_idle_per_host(POOL_IDLE_PER_WORKER)
        .http1_max_buf_size(UPSTREAM_HEAD_BYTES)
        .build(connector)
}
