//! The file as it is written: plain strings and numbers, a unit in every key's name that needs one.
//!
//! The doc comment of a key is its description in the schema and in the reference, so it is written for operators.
//! One file a section, or a few that belong together.

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

/// Configuration of tailroute: where it listens, the workers it routes to, and how it chooses between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The data port: serves the OpenAI API and nothing else.
    pub server: Server,
    /// The admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: Admin,
    /// A port where Envoy-based gateways ask which worker a request should go to (`ext_proc`, docs/endpoint-picker.md).
    pub endpoint_picker: EndpointPicker,
    /// The inference workers, one section each. At least one, here or in the environment or on the command line, unless
    /// `[discovery]` finds them.
    pub workers: Vec<Worker>,
    /// Workers that are found while the router serves: in Kubernetes, in the DNS, in a file.
    pub discovery: Discovery,
    /// How a worker is chosen for a turn.
    pub routing: Routing,
    /// The time to first token to be met, and for which share of turns.
    pub objective: Objective,
    /// What workers are told about the cache they may drop first.
    pub hints: Hints,
    /// What the router learns from answers while it serves.
    pub learning: Learning,
    /// The index of which worker holds which prefix.
    pub index: Index,
    /// The probes that find out whether a worker can be sent requests.
    pub health: Health,
    /// What is done about workers that fail: deadlines, retries, breakers, slow starts, hedges.
    pub failure: Failure,
    /// What workers are told of clients, and which paths clients may ask for.
    pub http: Http,
    /// Bounds on sizes, times and numbers. Nothing that grows is without one.
    pub limits: Limits,
    /// When a request waits here, and when it is turned away.
    pub admission: Admission,
    /// Who may come in: API keys, by their hashes. As long as there is none, and `admission.keys_file` names no file,
    /// everybody may.
    pub keys: Vec<Key>,
    /// Encryption, of the data port and towards the workers.
    pub tls: Tls,
    /// A capture of the traffic, for `tailroute replay`.
    pub capture: Capture,
    /// The record of recent decisions, and who may ask for the terms of one.
    pub explain: Explain,
    /// Traces of requests, sent to a collector.
    pub traces: Traces,
    /// Other replicas of this router, before the same workers.
    pub fleet: Fleet,
    /// The log, on standard error.
    pub log: Log,
}
