//! Strangers against the router, over real sockets: clients, workers and publishers of cache events that keep no rule, beside
//! honest traffic. Asked is that no honest client sees an error, that `/livez` answers, that memory stays within the budget
//! that `tailroute check` prints, and that nothing is held afterwards.
//!
//! | file | scenario |
//! |---|---|
//! | [`together`] | each kind of stranger beside honest streams, and all of them at once |
//! | [`http1`], [`http2`] | hostile clients |
//! | [`workers`] | hostile workers, and the clients who look at what comes of them |
//! | [`publishers`] | hostile publishers of cache events |
//! | [`places`] | connections that hold every place, silent ones on the admin port, names of a megabyte |
//! | [`log`] | a log that cannot be written |
//! | [`descriptors`] | too few descriptors |
//! | [`drain`] | an end that idle connections must not hold up |
//!
//! Clients that leave are in `disconnect`. [`honest`] and [`livez`] are who must not notice; [`stage`] starts the processes, and
//! [`report`] holds figures to what is asked. The router is the release build's binary in `make test-hostile` (`SECONDS=3
//! STREAMS=200`, `STRICT=1` on a quiet machine), and this program itself in `make test`, at a few seconds and streams.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests and their helpers, whose reports go to standard output"
)]

mod descriptors;
mod drain;
mod frames;
mod honest;
mod http1;
mod http2;
mod livez;
mod log;
mod places;
mod publishers;
mod report;
mod stage;
mod strangers;
mod together;
mod workers;

use std::str::FromStr;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

/// One scenario at a time: each has the machine for itself.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// A number from the environment, or what stands in for it.
fn setting<T: FromStr>(name: &str, otherwise: T) -> T {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .ok()
            .unwrap_or_else(|| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    }
}

/// For how long strangers are at work.
fn seconds() -> Duration {
    Duration::from_secs_f64(setting("SECONDS", 2.0))
}

/// Honest streams beside them.
fn streams() -> usize {
    setting("STREAMS", 20)
}

/// By how much the numbers of strangers' connections are divided: fewer streams go with fewer strangers.
fn divided_by() -> usize {
    (200 / streams().max(1)).clamp(1, 10)
}

/// Whether a figure that a busy machine spoils is held to what was promised.
fn is_strict() -> bool {
    std::env::var_os("STRICT").is_some()
}

/// The processes' part; of no use by itself.
#[test]
#[ignore = "a part that the other tests start as a process of its own"]
fn part() {
    tailroute_e2e::child::play();
}
