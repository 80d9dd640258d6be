//! The router as its clients and its workers see it: the specification, by scenario.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod aborts;
mod affinity;
mod bad_input;
mod chaos;
mod dialects;
mod drain;
mod faults;
mod feedback;
mod forwarding;
mod hints;
mod learning;
mod streaming;
