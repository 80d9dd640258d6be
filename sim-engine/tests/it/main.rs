//! The engine as its clients see it, through real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod api;
mod apis;
mod client;
mod clock;
mod events;
mod faults;
mod hints;
mod messages;
mod responses;
