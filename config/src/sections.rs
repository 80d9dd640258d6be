//! The sections of the configuration, one file each.
//!
//! A key is a field of its section, with its bounds (`schemars`), its default, and a doc comment for operators, which
//! is its description in the schema and in docs/configuration.md. Most sections are one struct, whose fields have the
//! types that the router uses ([`as_written`] says how they are written). A section with texts to parse or files to
//! read is two structs: `…Section` as written, and its checked form. Times that feed the policies are `Millis`; times
//! that bound sockets are `Duration`, as tokio takes them.
//!
//! The schema checks ranges first; the sections check texts, and values that must agree with each other. For an invalid
//! value a default is used while the check continues. A configuration with problems is never returned.

pub(crate) mod admin;
pub(crate) mod admission;
pub(crate) mod as_written;
pub(crate) mod base_url;
pub(crate) mod calibration;
pub(crate) mod checker;
pub(crate) mod discovery;
pub(crate) mod endpoint_picker;
pub(crate) mod engine;
pub(crate) mod failure;
pub(crate) mod fleet;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod learning;
pub(crate) mod limits;
pub(crate) mod objective;
pub(crate) mod output;
pub(crate) mod own_ports;
pub(crate) mod routing;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod traces;
pub(crate) mod worker;

pub use admin::{Admin, Audit, Role, Token};
pub use admission::Admission;
pub(crate) use checker::Checker;
pub use discovery::{Api, Discovery, Dns, Kubernetes, Port, Scheme, Template, Watched, read_workers};
pub use endpoint_picker::EndpointPicker;
pub use engine::{CachePolicy, Dialect, Priority};
pub use failure::Failure;
pub use fleet::Fleet;
pub use health::Health;
pub use http::{ANY_ORIGIN, Forwarded, Http, Network};
pub use index::{IndexConfig, Snapshot};
pub(crate) use keys::KeySection;
pub use keys::{Key, KeyDigest, Rate};
pub use learning::{Hints, Learning};
pub use limits::Limits;
pub use objective::{Class, Objective};
pub use output::{Capture, Explain, Log, LogFormat, level_problem};
pub(crate) use routing::misnamed;
pub use routing::{OF_HEADER, Requests, Routing, UnlistedModels};
pub use secret::Secret;
pub use server::Server;
pub use tls::{Identity, ServerTls, Tls, WorkersTls};
pub use traces::{OtlpProtocol, Traces};
pub use worker::{KvEvents, Worker};
pub(crate) use worker::{WorkerSection, worker};
