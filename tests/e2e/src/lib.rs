//! Scenarios through real sockets: the router in front of simulated engines and scripted workers.
//!
//! The scenarios themselves are in `tests/it`; their names, read as sentences, say what the router does. Here is what
//! they stand on. [`fleet`] starts engines and a router in front of them; [`upstream`] is a worker that sends a byte
//! only when the test says so; [`client`] speaks proper HTTP and can hang up, [`raw`] writes any bytes at all;
//! [`talk`] makes conversations; [`log`] keeps what is logged; [`wait`] waits for a condition with a deadline, so that no test sleeps to be right;
//! [`child`] runs a part as a process of its own, and [`replies`] knows whether a stream is the engine's, byte for byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helper fails the test"
)]

pub mod child;
pub mod client;
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
