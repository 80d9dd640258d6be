//! The router's specification as scenarios, from the point of view of clients and workers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod aborts;
mod admin;
mod admission;
mod affinity;
mod answers;
mod api;
mod bad_input;
mod bounds;
mod browsers;
mod caches;
mod chaos;
mod connections;
mod deadlines;
mod decisions;
mod dialects;
mod drain;
mod exchanges;
mod failing;
mod faults;
mod feedback;
mod forwarding;
mod guards;
mod heads;
mod hedging;
mod hints;
mod hostile_workers;
mod idleness;
mod learning;
mod limits;
mod matrix;
mod mixed_fleets;
mod model_lists;
mod names;
mod objectives;
mod overrides;
mod plain;
mod reloads;
mod rules;
mod smuggling;
mod steering;
mod streaming;
mod tenants;
mod tls;
mod traces;
mod tunnel;
mod unconfigured;
mod uploads;

/// The processes' part; does nothing by itself.
#[test]
#[ignore = "started by other tests as a separate process"]
fn part() {
    tailroute_e2e::child::play();
}
