//! Telemetry of single requests: trace context, spans, captured turns, and log lines.
//!
//! | module | contents |
//! |---|---|
//! | [`context`] | W3C trace context: read, created and forwarded |
//! | [`traces`] | spans of a request, tail sampling, and export by OTLP |
//! | [`logs`] | the log on standard error and its levels |
//! | [`capture`] | traffic as a trace for `tailroute replay` |
//!
//! The crate does not depend on workers or the pipeline, which describe themselves by the traits of [`traces`]. The
//! router counts metrics through [`traces::Counters`] and [`capture::Counters`].

// `eprintln!` panics if standard error is closed.
#![warn(clippy::print_stderr)]

pub mod capture;
pub mod context;
pub mod logs;
pub mod traces;
