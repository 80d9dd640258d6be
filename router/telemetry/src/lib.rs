//! Telemetry of single requests: the trace that a request belongs to, its spans, its line in a capture, and the log's lines
//! about it.
//!
//! | module | what |
//! |---|---|
//! | [`context`] | W3C trace context: read from a request, made, and passed on |
//! | [`traces`] | a request's spans, which traces are kept, and their export by OTLP |
//! | [`logs`] | the log on standard error, and what of it is shown |
//! | [`capture`] | the traffic as a trace for `tailroute replay` |
//!
//! The crate knows neither workers nor the pipeline of a request. Those describe themselves by the traits of [`traces`].
//! Metrics stay with the router: they are counted through [`traces::Counters`] and [`capture::Counters`].

// `eprintln!` panics where standard error cannot be written to.
#![warn(clippy::print_stderr)]

pub mod capture;
pub mod context;
pub mod logs;
pub mod traces;
