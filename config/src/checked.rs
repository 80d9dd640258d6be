//! What was meant: every value in the type that the router works with, checked once, here.
//!
//! Times that feed the policies are [`Millis`]; times that bound sockets are [`Duration`], as tokio takes them.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use policy::units::Millis;

use crate::written::LogFormat;

mod admin;
mod admission;
mod base_url;
mod calibration;
mod checker;
mod convert;
mod discovery;
mod endpoint_picker;
mod failure;
mod fleet;
mod health;
mod http;
mod keys;
mod limits;
mod objective;
mod routing;
mod tls;
mod traces;
mod worker;

pub use admin::{Admin, Audit, Token};
pub use admission::Admission;
pub(crate) use checker::Checker;
pub(crate) use convert::check;
pub use convert::level_problem;
pub use discovery::{Api, Discovery, Dns, Kubernetes, Port, Template, Watched, read_workers};
pub use endpoint_picker::EndpointPicker;
pub use failure::Failure;
pub use fleet::Fleet;
pub use health::Health;
pub use http::{Http, Network};
pub use keys::{Key, KeyDigest, Rate};
pub use limits::Limits;
pub use objective::{Class, Objective};
pub use routing::{Requests, Routing};
pub(crate) use routing::{cache_aware, misnamed, overrides, routing, weights};
pub use tls::{Identity, ServerTls, Tls, WorkersTls};
pub use traces::Traces;
pub(crate) use worker::worker;
pub use worker::{KvEvents, Secret, Worker};

/// A configuration without mistakes. There is at least one worker, or somewhere to find them; names and urls are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The data port.
    pub server: Server,
    /// The admin port; not the data port.
    pub admin: Admin,
    /// The port where gateways ask for workers, if there is to be one.
    pub endpoint_picker: Option<EndpointPicker>,
    /// The workers, in the order in which they were written. Not empty unless they are discovered.
    pub workers: Vec<Worker>,
    /// Where others are found.
    pub discovery: Discovery,
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
    /// What is done about workers that fail.
    pub failure: Failure,
    /// HTTP between clients and workers.
    pub http: Http,
    /// Bounds.
    pub limits: Limits,
    /// When a request waits, and when it is turned away.
    pub admission: Admission,
    /// Who may come in. Empty means everybody, unless `admission` names a file of keys, which then has none.
    pub keys: Vec<Key>,
    /// Encryption.
    pub tls: Tls,
    /// The capture, if there is to be one.
    pub capture: Option<Capture>,
    /// The record of decisions.
    pub explain: Explain,
    /// Traces, if they are to be sent anywhere.
    pub traces: Option<Traces>,
    /// Other replicas, if there are to be any.
    pub fleet: Option<Fleet>,
    /// The log.
    pub log: Log,
}

impl Config {
    /// Whether callers have to show a key.
    #[must_use]
    pub fn requires_keys(&self) -> bool {
        !self.keys.is_empty() || self.admission.keys_file.is_some()
    }
}

/// The data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address that clients connect to.
    pub listen: SocketAddr,
    /// Local socket on which the ports are handed over.
    pub handover: Option<PathBuf>,
}

/// What is learned while the router serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// Each worker's cost.
    pub costs: bool,
    /// Time without an answer after which a worker may have become twice as fast; positive.
    pub fade: Millis,
    /// What conversations do next.
    pub habits: bool,
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

/// A capture of the traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The file.
    pub path: PathBuf,
    /// Bytes at which it is full.
    pub max_bytes: NonZeroUsize,
}

/// The record of decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// Memory that it takes; may be zero.
    pub max_bytes: usize,
    /// Whether everybody may ask for the terms of a choice.
    pub in_answers: bool,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The form of a line.
    pub format: LogFormat,
    /// Filter directives.
    pub level: String,
}
