//! The file as written: plain strings and numbers, with the unit in a key's name where it has one.
//!
//! The doc comment of a key is its description in the schema and in the reference, so it addresses operators. There is
//! one file per section, or for a few that belong together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod admin;
mod admission;
mod discovery;
mod endpoint_picker;
mod failure;
mod fleet;
mod health;
mod http;
mod keys;
mod learning;
mod limits;
mod objective;
mod output;
mod routing;
mod server;
mod tls;
mod traces;
mod worker;

pub use admin::{Admin, Role, Token, TokensFile};
pub use admission::Admission;
pub use discovery::{Discovery, Dns, Kubernetes, Scheme, WatchedFile, WorkersFile};
pub use endpoint_picker::EndpointPicker;
pub use failure::Failure;
pub use fleet::Fleet;
pub use health::Health;
pub use http::{Forwarded, Http};
pub use keys::{Key, KeysFile};
pub use learning::{Hints, Index, Learning};
pub use limits::Limits;
pub use objective::{Class, Objective};
pub use output::{Capture, Explain, Log, LogFormat};
pub use routing::{CacheAware, Override, OwnWeights, Requests, Routing, WeightName, Weights};
pub use server::Server;
pub use tls::{Tls, WorkersTls};
pub use traces::{OtlpProtocol, Traces};
pub use worker::{CachePolicy, Dialect, Priority, Worker};

/// Configuration of tailroute: its ports, the workers it routes to, and how it selects among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Data port: serves the OpenAI API and nothing else.
    pub server: Server,
    /// Admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: Admin,
    /// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
    pub endpoint_picker: EndpointPicker,
    /// Inference workers, one section each. At least one, in the file, the environment or on the command line, unless
    /// `[discovery]` is enabled.
    pub workers: Vec<Worker>,
    /// Discovery of workers while the router serves: from Kubernetes, DNS or a file.
    pub discovery: Discovery,
    /// Routing policy, which selects the worker for a turn.
    pub routing: Routing,
    /// Objective: the time to first token, and the share of turns that has to meet it.
    pub objective: Objective,
    /// Hints to workers about the cache that they may evict first.
    pub hints: Hints,
    /// What the router learns from responses while it serves.
    pub learning: Learning,
    /// Index of the prefixes that each worker holds.
    pub index: Index,
    /// Health probes of the workers.
    pub health: Health,
    /// Handling of failing workers: deadlines, retries, breakers, slow starts, hedges.
    pub failure: Failure,
    /// HTTP between clients and workers: forwarded client information and extra paths.
    pub http: Http,
    /// Limits on sizes, times and numbers. Everything that can grow has one.
    pub limits: Limits,
    /// Admission: when a request is queued, and when it is refused.
    pub admission: Admission,
    /// API keys, by their hashes. While there is none, and `admission.keys_file` names no file, every caller is
    /// admitted.
    pub keys: Vec<Key>,
    /// TLS of the data port and towards the workers.
    pub tls: Tls,
    /// Capture of the traffic, for `tailroute replay`.
    pub capture: Capture,
    /// Record of recent decisions, and who may request the terms of one.
    pub explain: Explain,
    /// Traces of requests, sent to a collector.
    pub traces: Traces,
    /// Other replicas of this router, in front of the same workers.
    pub fleet: Fleet,
    /// Log, on standard error.
    pub log: Log,
}
