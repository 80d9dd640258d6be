//! The running router: everything that requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use config::Config;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use policy::ids::WorkerId;
use policy::route::Settings;
use tokio::task::JoinSet;

use crate::body::Body;
use crate::capture::{Capture, CaptureError};
use crate::clock::Clock;
use crate::evidence::follow::follow;
use crate::fleet::{Fleet, Worker, health, hints};
use crate::knowledge::Knowledge;
use crate::metrics::Metrics;

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
    /// What was learned.
    pub knowledge: Knowledge,
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
            metrics,
            capture: capture.transpose()?,
            client: client(&config),
            clock: Clock::start(),
            snapshot: parking_lot::Mutex::new(()),
            sequence: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
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

    /// Starts what runs beside the requests: each worker's probes and its hints. Ends when the set is dropped.
    #[must_use]
    pub fn spawn_tasks(self: &Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if let Some(snapshot) = &self.config.index.snapshot {
            tasks.spawn(crate::snapshot::keep(Arc::clone(self), snapshot.clone()));
        }
        for worker in self.fleet.workers().iter() {
            tasks.spawn(health::watch(Arc::clone(self), Arc::clone(worker)));
            if worker.spec.kv_events != config::KvEvents::Off {
                tasks.spawn(follow(Arc::clone(self), Arc::clone(worker)));
            }
            if self.config.hints.enabled && self.config.hints.out_of_band {
                tasks.spawn(hints::deliver(Arc::clone(self), Arc::clone(worker)));
            }
        }
        tasks
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
