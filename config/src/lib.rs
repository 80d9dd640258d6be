//! The configuration: as written by an operator, as checked, and its problems.
//!
//! ```text
//! TOML text ─┐
//! environment├─▶ tree (every value knows where it came from) ─▶ File ─▶ Config ─▶ the running router
//! flags ─────┘      │ schema: unknown keys, types, ranges  │ meaning: urls, names, addresses
//!                   └───────────────▶ Problems ◀───────────┘
//! ```
//!
//! `sections` has one file per section: its keys, with their documentation, and their checks. `configuration` is the
//! whole of them. The JSON schema derived from it drives the check of the file, the names of environment variables,
//! [`schema()`] and [`reference()`]. [`Config`] has typed values and needs no further check. All problems are reported
//! at once.
//!
//! No modules use each other in a circle. `tree`, `schema`, `validate` and `read` know no section, the sections do not
//! know the whole, and the whole does not know where it is loaded from.

#![warn(missing_docs)]

mod coerce;
mod configuration;
mod document;
pub mod file;
mod file_schema;
mod load;
mod markdown;
mod overlay;
mod problem;
mod read;
mod schema;
mod sections;
mod syntax;
mod tree;
mod validate;

pub use configuration::Config;
pub use document::{PolicyDocument, WorkerDocument, read_document, read_query};
pub use file_schema::schema;
pub use load::{Sources, environment, load, load_file, load_routing};
pub use markdown::reference;
pub use overlay::{ENVIRONMENT_PREFIX, Overrides};
pub use policy::hint_rule::HintRule;
pub use policy::route::{CacheAware, PolicyName, WeightName, Weights};
pub use problem::{Origin, Problem, Problems};
pub use read::LoadError;
pub use sections::admin::{Admin, Audit, Role, Token};
pub use sections::admission::Admission;
pub use sections::discovery::{
    Api, Discovery, Dns, Kubernetes, Port, Scheme, Template, Watched, read_workers,
};
pub use sections::endpoint_picker::EndpointPicker;
pub use sections::engine::{CachePolicy, Dialect, Priority};
pub use sections::failure::Failure;
pub use sections::fleet::Fleet;
pub use sections::health::Health;
pub use sections::http::{ANY_ORIGIN, Forwarded, Http, Network};
pub use sections::index::{IndexConfig, Snapshot};
pub use sections::keys::{Key, KeyDigest, Rate};
pub use sections::learning::{Hints, Learning};
pub use sections::limits::Limits;
pub use sections::objective::{Class, Objective};
pub use sections::output::{Capture, Explain, Log, LogFormat, level_problem};
pub use sections::routing::{OF_HEADER, Requests, Routing, UnlistedModels};
pub use sections::secret::Secret;
pub use sections::server::Server;
pub use sections::tls::{Identity, ServerTls, Tls, WorkersTls};
pub use sections::traces::{OtlpProtocol, Traces};
pub use sections::worker::{KvEvents, Worker};

/// A complete, commented configuration file: every key with its default.
pub const EXAMPLE: &str = include_str!("../tailroute.example.toml");

#[cfg(test)]
mod tests;
