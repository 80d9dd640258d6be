//! Telemetry of requests: [trace context](context), [spans](traces), [captured turns](capture), [log lines](logs).
//!
//! The crate does not depend on workers or the pipeline, which describe themselves by the traits of [`traces`]. The
//! router counts metrics through [`traces::TraceObserver`] and [`capture::CaptureObserver`].

// `eprintln!` panics if standard error is closed.
#![warn(clippy::print_stderr)]

pub mod capture;
pub mod context;
pub mod logs;
pub mod traces;
