//! The state that every part of the router shares: configuration, workers, what was learned, the policy in force.
//!
//! A part holds an [`Arc`] of it beside what is its own (`proxy`, `replicas`, `admin`). Nothing here knows any of them.

mod announce;
pub mod control;
mod decisions;
mod fleet_record;
mod gauges;
mod health;
pub mod idle;
mod learned;
mod live;
mod live_policy;
mod members;
pub mod overload;
mod pool_timer;
pub mod snapshot;
pub mod supervise;
pub mod turn_reports;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use config::Config;
use discovery::DiscoveryState;
use fleet::clock::Clock;
use fleet::hints::SentObjective;
use fleet::overrides::AdminState;
use fleet::{Fleet, Worker};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use learning::feedback::Feedback;
use learning::knowledge::Knowledge;
use metrics::{MetricError, Metrics};
use operator::revisions::Revisions;
use operator::{AuditError, Operator};
use policy::ids::WorkerId;
use policy::tail::Class;
use policy::units::{Millis, Tokens};
use protocol::error::ApiError;
use tailroute_http::tls::{Tls, TlsError};
use tailroute_http::unread::Unread;
use tailroute_http::upstream::UpstreamClient;
use tailroute_http::via::Via;

use self::decisions::Pending;
use self::idle::Idle;
pub use self::live::Live;
use self::pool_timer::PoolTimer;

/// Most bytes of all responses that are held while they pass, besides the first part of each.
pub const MAX_COPIED_BYTES: usize = 256 << 20;

/// The state that every part of the router shares.
#[derive(Debug)]
pub struct State {
    /// Configuration at the start. Values that a reload replaces are in [`State::live`], `policy`, `operator` and
    /// `tls`.
    pub config: Config,
    live: ArcSwap<Live>,
    pub tls: Tls,
    /// Policy in force, and its history.
    pub policy: Revisions,
    /// Admin tokens, audit log and events.
    pub operator: Operator,
    pub fleet: Fleet,
    /// Discovery sources and what they found.
    pub discovery: Arc<DiscoveryState>,
    /// Prefixes cached by each worker, and token counts of prompts.
    pub knowledge: Knowledge,
    /// Costs, conversations and the value of their ends.
    pub feedback: Feedback,
    pub metrics: Metrics,
    /// HTTP client for requests to workers, except those that go through the router's own HTTP/1.1 client.
    pub client: UpstreamClient,
    /// Marks requests to workers as forwarded by this router.
    pub via: Via,
    pub clock: Clock,
    pub idle: Arc<Idle>,
    overload: parking_lot::Mutex<overload::OverloadWatch>,
    /// Locked while a snapshot is read or written.
    pub snapshot: parking_lot::Mutex<()>,
    pending: parking_lot::Mutex<Pending>,
    /// Whether another process has taken over this one's state. Only that process then changes decisions and writes
    /// files.
    handed_over: AtomicBool,
    /// Bytes of request heads that are being read, and of bodies until their response begins.
    unread: Arc<AtomicUsize>,
    /// Bytes of responses that are held while they pass.
    copied: Arc<AtomicUsize>,
    draining: AtomicBool,
}

/// Reason why the state cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A metric is missing from the table of metrics.
    #[error("the metrics cannot be registered")]
    Metrics(#[from] MetricError),
    /// The certificates are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl State {
    /// Creates the state of a router that has served nothing yet.
    /// Fails if the metrics cannot be registered, the certificates are invalid, or the audit log cannot be written.
    pub fn new(config: Config) -> Result<Arc<Self>, StateError> {
        let metrics = Metrics::new()?;
        metrics.name_workers(config.workers.iter().map(|worker| &*worker.name));
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
            client: client(&config, &tls, &idle),
            via: Via::of_this_process(),
            tls,
            clock,
            idle,
            overload: parking_lot::Mutex::default(),
            snapshot: parking_lot::Mutex::new(()),
            pending: parking_lot::Mutex::default(),
            handed_over: AtomicBool::new(false),
            unread: Arc::default(),
            copied: Arc::default(),
            draining: AtomicBool::new(false),
            config,
        }))
    }

    /// Returns the settings that can change while the router serves.
    #[must_use]
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Applies the settings of another configuration.
    pub fn set_live(&self, config: &Config) {
        self.live.store(Arc::new(Live::of(config)));
    }

    /// Returns the error for a request that finds no ready worker.
    #[must_use]
    pub fn no_worker_ready(&self) -> ApiError {
        let workers = self.fleet.workers();
        let held = |worker: &Arc<Worker>| {
            matches!(worker.admin_state(), AdminState::Cordoned | AdminState::Draining)
        };
        if !workers.is_empty() && workers.iter().all(held) {
            ApiError::AllWorkersHeld
        } else {
            ApiError::NoWorkerReady
        }
    }

    /// Returns an empty reservation of memory for a request that is being read, within `limits.max_unread_bytes`.
    #[must_use]
    pub fn unread(&self) -> Unread {
        Unread::new(
            Arc::clone(&self.unread),
            self.live().limits.max_unread_bytes.get(),
        )
    }

    /// Returns an empty reservation of memory for the part of a response that is held while it passes, within
    /// [`MAX_COPIED_BYTES`].
    #[must_use]
    pub fn copied(&self) -> Unread {
        Unread::new(Arc::clone(&self.copied), MAX_COPIED_BYTES)
    }

    /// Starts the drain: the router is no longer ready, and closes connections when they become idle.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Records whether another process has taken over this one's state. If so, this one changes no decision and writes
    /// no snapshot.
    pub fn set_handed_over(&self, handed_over: bool) {
        self.handed_over.store(handed_over, Ordering::Release);
    }

    /// Returns whether another process has taken over this one's state.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Returns whether a worker is sent hints between requests, so that ends of conversations are evicted when it needs
    /// room.
    #[must_use]
    pub fn makes_room_on(&self, worker: &Worker) -> bool {
        self.config.hints.enabled && self.config.hints.out_of_band && worker.hears_hints()
    }

    /// Returns the objective for requests without a separate hint: the free tail of a second turn. A worker that
    /// takes hints between requests has no free tail.
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

    /// Returns Q̂ of all traffic: as learned, or as configured if habits are not learned.
    #[must_use]
    pub fn next_prompt(&self) -> Tokens {
        if self.config.learning.habits {
            self.feedback.conversations.lock().habits.all().next_prompt().0
        } else {
            self.live().objective.next_prompt
        }
    }
}

fn client(config: &Config, tls: &Tls, idle: &Arc<Idle>) -> UpstreamClient {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let pool_timer = PoolTimer {
        idle: Arc::clone(idle),
        timer: TokioTimer::new(),
    };
    UpstreamClient::new(
        tls.connector(connector, config.limits.connect_timeout),
        pool_timer,
    )
}
