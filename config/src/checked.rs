//! The checked configuration: every value in the type that the router uses, checked once, here.
//!
//! Times for the policies are [`Millis`]; timeouts of sockets are [`Duration`], as tokio takes them.

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

/// A valid configuration. It has workers or a source that discovers them; names and urls are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Data port.
    pub server: Server,
    /// Admin port; differs from the data port.
    pub admin: Admin,
    /// Endpoint picker's port, if enabled.
    pub endpoint_picker: Option<EndpointPicker>,
    /// Configured workers, in the order of the file. Not empty unless discovery is enabled.
    pub workers: Vec<Worker>,
    /// Sources of discovered workers.
    pub discovery: Discovery,
    /// Routing policy.
    pub routing: Routing,
    /// Objective for times to first token.
    pub objective: Objective,
    /// Hints to workers.
    pub hints: Hints,
    /// What is learned from responses.
    pub learning: Learning,
    /// Index of prefixes.
    pub index: IndexConfig,
    /// Health probes.
    pub health: Health,
    /// Handling of failing workers.
    pub failure: Failure,
    /// HTTP between clients and workers.
    pub http: Http,
    /// Limits on sizes, times and numbers.
    pub limits: Limits,
    /// Admission queue.
    pub admission: Admission,
    /// API keys. Without any, every caller is admitted, unless `admission` names a file of keys, which then is empty.
    pub keys: Vec<Key>,
    /// TLS.
    pub tls: Tls,
    /// Capture of traffic, if enabled.
    pub capture: Option<Capture>,
    /// Record of decisions.
    pub explain: Explain,
    /// Traces, if enabled.
    pub traces: Option<Traces>,
    /// Other replicas, if configured.
    pub fleet: Option<Fleet>,
    /// Log.
    pub log: Log,
}

impl Config {
    /// Returns whether callers need a key.
    #[must_use]
    pub fn requires_keys(&self) -> bool {
        !self.keys.is_empty() || self.admission.keys_file.is_some()
    }
}

/// Settings of the data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address that clients connect to.
    pub listen: SocketAddr,
    /// Local socket on which the ports are handed over to another process.
    pub handover: Option<PathBuf>,
}

/// What is learned while the router serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// Whether each worker's cost is learned.
    pub costs: bool,
    /// Time without a response after which a worker may have become twice as fast; positive.
    pub fade: Millis,
    /// Whether the habits of conversations are learned.
    pub habits: bool,
}

/// Hints to workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Hints {
    /// Whether any hint is sent at all.
    pub enabled: bool,
    /// How long a worker keeps a hint; positive.
    pub ttl: Millis,
    /// Whether requests carry hints.
    pub in_request: bool,
    /// Whether hints are sent outside of requests.
    pub out_of_band: bool,
    /// Number of conversations with a common prefix from which that prefix is protected.
    pub protect_from: Option<NonZeroU32>,
}

/// Settings of the prefix index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Memory limit in bytes.
    pub max_bytes: NonZeroUsize,
    /// Snapshots, if enabled.
    pub snapshot: Option<Snapshot>,
}

/// Settings of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Path of the file.
    pub path: PathBuf,
    /// Time between two snapshots; positive.
    pub interval: Duration,
    /// Age beyond which a snapshot is not read.
    pub max_age: Duration,
}

/// Settings of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes at which the file is full.
    pub max_bytes: NonZeroUsize,
}

/// Settings of the record of decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// Memory in bytes; may be zero.
    pub max_bytes: usize,
    /// Whether every caller may request the terms of a decision.
    pub in_answers: bool,
}

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Format of a line.
    pub format: LogFormat,
    /// Filter directives.
    pub level: String,
}
