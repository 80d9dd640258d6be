//! Configuration: reading, checking, and reporting what is wrong.
//!
//! Three types, two conversions:
//!
//! ```text
//! TOML text ─┐
//! environment├─▶ tree (every value with its origin) ─▶ written::File ─▶ checked::Config ─▶ the running router
//! flags ─────┘      │ schema: unknown keys, types, ranges            │ meaning: urls, names, addresses
//!                   └────────────────▶ Problems ◀────────────────────┘
//! ```
//!
//! [`written`] is the file as written: plain strings and numbers, one doc comment per key. Its JSON schema is derived
//! from it and drives everything that has to agree with it: the check of the file, the names of environment variables,
//! [`schema()`], and [`reference()`]. [`Config`] is the checked result: addresses, non-zero numbers, policies by type,
//! which need no further checks.
//!
//! A wrong value is reported and set aside, and the check continues without it, so that all mistakes are reported at
//! once.

mod checked;
mod coerce;
mod document;
pub mod file;
mod load;
mod markdown;
mod overlay;
mod problem;
mod schema;
mod tree;
mod validate;
pub mod written;

pub use checked::Fleet;
pub use checked::{
    Admin, Admission, Api, Audit, Capture, Class, Config, Discovery, Dns, EndpointPicker, Explain, Failure,
    Health, Hints, Http, Identity, IndexConfig, Key, KeyDigest, Kubernetes, KvEvents, Learning, Limits, Log,
    Network, Objective, Port, Rate, Requests, Routing, Secret, Server, ServerTls, Snapshot, Template, Tls,
    Token, Traces, Watched, Worker, WorkersTls, level_problem, read_workers,
};
pub use document::{PolicyDocument, WorkerDocument, read_document, read_query};
pub use load::{LoadError, Sources, load, load_file, load_routing};
pub use markdown::reference;
pub use overlay::{ENVIRONMENT_PREFIX, Overrides};
pub use policy::route::{CacheAware, PolicyName, Weights};
pub use problem::{Origin, Problem, Problems};
pub use schema::schema;
pub use written::{
    CachePolicy, Dialect, Forwarded, LogFormat, OtlpProtocol, Priority, Role, Scheme, WeightName,
};

/// A complete, commented configuration file: every key with its default.
pub const EXAMPLE: &str = include_str!("../tailroute.example.toml");

#[cfg(test)]
mod tests;
