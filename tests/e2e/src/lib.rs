//! Test support for scenarios through real sockets: the router with simulated engines and scripted workers.
//!
//! The scenarios are in `tests/it`; their names state what the router does. [`fleet`] starts engines and a router;
//! [`upstream`] is a worker that sends bytes only on the test's command; [`client`] speaks proper HTTP and can
//! disconnect, [`raw`] writes arbitrary bytes; [`talk`] builds conversations; [`log`] captures the log; [`wait`]
//! waits for a condition with a deadline, so that no test relies on sleeping; [`child`] runs an engine or a router as a
//! process; [`environment`] has the settings of long runs; [`replies`] compares a stream with the engine's, byte for byte; [`metrics`] parses the router's metrics.
//! [`changeable`], [`silent`] and [`publisher`] are an engine whose models change, a worker that becomes unreachable,
//! and a hostile publisher of cache events.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helper fails the test"
)]

pub mod changeable;
pub mod child;
pub mod client;
pub mod environment;
pub mod fleet;
pub mod log;
pub mod metrics;
pub mod publisher;
pub mod raw;
pub mod replies;
pub mod silent;
pub mod talk;
pub mod upstream;
pub mod wait;
