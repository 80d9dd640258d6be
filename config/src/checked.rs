//! What was meant: every value in the type that the router works with, checked once, here.
//!
//! Times that feed the policies are [`Millis`]; times that bound sockets are [`Duration`], as tokio takes them.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use policy::cost::PrefillCost;
use policy::route::{CacheAware, PolicyName, Settings, Weights};
use policy::units::{Millis, Tokens};

use crate::written::{CachePolicy, Dialect, LogFormat, Priority};

mod calibration;
mod convert;
mod worker;

pub(crate) use convert::{check, routing};

/// A configuration without mistakes. There is at least one worker; names and urls are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The data port.
    pub server: Server,
    /// The admin port; not the data port.
    pub admin: Admin,
    /// The workers, in the order in which they were written. Never empty.
    pub workers: Vec<Worker>,
    /// How a worker is chosen.
    pub routing: Routing,
    /// What has to be met.
    pub objective: Objective,
    /// What workers are told.
    pub hints: Hints,
    /// What is learned.
    pub learning: Learning,
    /// The index of prefixes.
    pub index: IndexConfig,
    /// Probes of the workers.
    pub health: Health,
    /// Bounds.
    pub limits: Limits,
    /// The capture, if there is to be one.
    pub capture: Option<Capture>,
    /// The log.
    pub log: Log,
}

/// The data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address that clients connect to.
    pub listen: SocketAddr,
}

/// The admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of metrics and administration.
    pub listen: SocketAddr,
}

/// One worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Unique; 1 to 64 visible ASCII characters, fit for a header and a label.
    pub name: String,
    /// `http` scheme, an authority, and a base path that does not end in `/` unless it is just that.
    pub url: Uri,
    /// α, β, γ to begin with.
    pub cost: PrefillCost,
    /// Whether somebody measured or wrote them; else the worker begins as the others of its pool are.
    pub cost_is_known: bool,
    /// Tokens that fit into its prefix cache; at least one block.
    pub capacity: Tokens,
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// The data-parallel rank that requests are pinned to, where its url has several.
    pub rank: Option<u32>,
    /// What its cache drops first.
    pub cache_policy: CachePolicy,
    /// How it is told.
    pub dialect: Dialect,
    /// Whether and how its requests carry a priority.
    pub priority: Priority,
    /// The models that it serves, if that was written; empty means: ask it.
    pub models: Vec<String>,
    /// Where its cache's events are.
    pub kv_events: KvEvents,
}

/// Where a worker's cache events are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvents {
    /// Ask it.
    Auto,
    /// Take none.
    Off,
    /// There.
    At {
        /// Of the publisher: `tcp://host:port`.
        endpoint: String,
        /// Of the socket that replays what was lost: `tcp://host:port`.
        replay: Option<String>,
    },
}

/// How a worker is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The rule.
    pub policy: PolicyName,
    /// Weights of `tail`; finite and not negative.
    pub weights: Weights,
    /// Upper bound of κ; at least 1.
    pub kappa_max: f64,
    /// Window over which ρ is measured; positive.
    pub utilisation_window: Millis,
    /// Thresholds of `cache_aware`.
    pub cache_aware: CacheAware,
    /// Tokens per byte of text before anything was learned; positive.
    pub tokens_per_byte: f64,
}

impl Default for Routing {
    /// What an empty `[routing]` section means.
    fn default() -> Self {
        routing(crate::written::Routing::default())
    }
}

impl Routing {
    /// Policy and weights as the one value that [`policy::route`] takes.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            policy: self.policy,
            weights: self.weights,
            kappa_max: self.kappa_max,
            cache_aware: self.cache_aware,
        }
    }
}

/// The objective: `share` of turns have their first token within `ttft`.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Time to first token; positive.
    pub ttft: Millis,
    /// Share of turns, between 0 and 1, both excluded.
    pub share: f64,
    /// Q̂ before anything was learned.
    pub next_prompt: Tokens,
    /// Classes with an objective of their own; their names are unique.
    pub classes: Vec<Class>,
}

/// A class of turns with an objective of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// 1 to 64 visible ASCII characters.
    pub name: String,
    /// Time to first token; positive.
    pub ttft: Millis,
    /// Models whose turns are of it if they name no class.
    pub models: Vec<String>,
}

/// What is learned while the router serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// Each worker's cost.
    pub costs: bool,
    /// Half-life of what is not renewed; positive.
    pub fade: Millis,
    /// What conversations do next.
    pub habits: bool,
    /// How much of the free tail is given away.
    pub xi: bool,
}

/// What workers are told.
#[derive(Clone, Debug, PartialEq)]
pub struct Hints {
    /// Whether any hint is sent at all.
    pub enabled: bool,
    /// How long a worker keeps one; positive.
    pub ttl: Millis,
    /// Whether requests carry hints.
    pub in_request: bool,
    /// Whether hints are sent beside the requests.
    pub out_of_band: bool,
    /// Probability of a return below which a silent conversation is taken to be over; 0 is never.
    pub ended_below: f64,
    /// Conversations that begin alike from which on the beginning is protected.
    pub protect_from: Option<NonZeroU32>,
}

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Memory that it may take.
    pub max_bytes: NonZeroUsize,
    /// Where it is kept over a restart, if it is.
    pub snapshot: Option<Snapshot>,
}

/// Where and when what was learned is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The file.
    pub path: PathBuf,
    /// Time between two; positive.
    pub interval: Duration,
    /// Age beyond which one is not read.
    pub max_age: Duration,
}

/// Probes of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Time between two probes; positive.
    pub interval: Duration,
    /// Time after which one has failed; positive, at most the interval.
    pub timeout: Duration,
    /// Failures in a row that take a worker out.
    pub unhealthy_after: NonZeroU32,
    /// Successes in a row that bring it back.
    pub healthy_after: NonZeroU32,
    /// Path and query of the probe; begins with `/`.
    pub path: String,
    /// Time between two looks at a worker's own queue.
    pub queue_interval: Option<Duration>,
}

/// Bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body.
    pub max_body_bytes: NonZeroUsize,
    /// Bytes of a request's head; at least 8 KiB, which is hyper's least.
    pub max_header_bytes: NonZeroUsize,
    /// For a client to send a request's head.
    pub header_timeout: Duration,
    /// For a client to send a request's body.
    pub body_timeout: Duration,
    /// For a connection to a worker to come up.
    pub connect_timeout: Duration,
    /// Total wait for the head of a worker's answer.
    pub first_byte_timeout: Duration,
    /// For a stream to be silent.
    pub idle_timeout: Duration,
    /// Open client connections.
    pub max_connections: NonZeroUsize,
    /// Requests in flight.
    pub max_in_flight: NonZeroUsize,
    /// For requests in flight to end after the router was told to stop; may be zero.
    pub drain_timeout: Duration,
    /// Other workers to be tried.
    pub retries: u32,
}

/// A capture of the traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The file.
    pub path: PathBuf,
    /// Bytes at which it is full.
    pub max_bytes: NonZeroUsize,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The form of a line.
    pub format: LogFormat,
    /// Filter directives.
    pub level: String,
}
