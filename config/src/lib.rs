//! The configuration: as written by an operator, as checked, and its problems.
//!
//! ```text
//! TOML text ─┐
//! environment├─▶ tree (every value knows where it came from) ─▶ sections::File ─▶ Config ─▶ the running router
//! flags ─────┘      │ schema: unknown keys, types, ranges            │ meaning: urls, names, addresses
//!                   └────────────────▶ Problems ◀────────────────────┘
//! ```
//!
//! `sections` has one file per section: what may be written, with its documentation, and its checked form. The JSON
//! schema derived from it drives the check of the file, the names of environment variables, [`schema()`] and
//! [`reference()`]. [`Config`] has typed values and needs no further check. All problems are reported at once.

#![warn(missing_docs)]

mod coerce;
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
mod whole;

pub use document::{PolicyDocument, WorkerDocument, read_document, read_query};
pub use file_schema::schema;
pub use load::{Sources, environment, load, load_file, load_routing};
pub use markdown::reference;
pub use overlay::{ENVIRONMENT_PREFIX, Overrides};
pub use policy::route::{CacheAware, PolicyName, WeightName, Weights};
pub use problem::{Origin, Problem, Problems};
pub use read::LoadError;
pub use sections::{
    ANY_ORIGIN, Admin, Admission, Api, Audit, CachePolicy, Capture, Class, Dialect, Discovery, Dns,
    EndpointPicker, Explain, Failure, Fleet, Forwarded, Health, Hints, Http, Identity, IndexConfig, Key,
    KeyDigest, Kubernetes, KvEvents, Learning, Limits, Log, LogFormat, Network, OF_HEADER, Objective,
    OtlpProtocol, Port, Priority, Rate, Requests, Role, Routing, Scheme, Secret, Server, ServerTls, Snapshot,
    Template, Tls, Token, Traces, UnlistedModels, Watched, Worker, WorkersTls, level_problem, read_workers,
};
pub use whole::Config;

/// A complete, commented configuration file: every key with its default.
pub const EXAMPLE: &str = include_str!("../tailroute.example.toml");

#[cfg(test)]
mod tests;
