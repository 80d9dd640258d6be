//! Hostile clients, workers and publishers of cache events against the router, over real sockets, beside honest
//! traffic. Honest clients must see no error, `/livez` must answer, memory must stay within the budget printed by
//! `tailroute check`, and nothing may be held afterwards.
//!
//! | file | scenario |
//! |---|---|
//! | [`together`] | each kind of hostile peer beside honest streams, and all of them at once |
//! | [`http1`], [`http2`] | hostile clients |
//! | [`workers`] | hostile workers, and the clients that check their responses |
//! | [`publishers`] | hostile publishers of cache events |
//! | [`places`] | connections that take every slot, silent ones on the admin port, names of a megabyte |
//! | [`log`] | a log that cannot be written |
//! | [`descriptors`] | too few descriptors |
//! | [`drain`] | a drain with idle connections |
//! | [`overload`] | more streams than the engines can serve |
//!
//! Disconnecting clients are covered by `disconnect`. [`honest`] and [`livez`] are the traffic that must be
//! unaffected; [`stage`] starts the processes, and [`report`] checks the figures. The router is the release build's
//! binary in `make test-hostile` (`SECONDS=3 STREAMS=200`, `STRICT=1` on a quiet machine), and this program itself in
//! `make test`, with a few seconds and streams.

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
mod overload;
mod places;
mod publishers;
mod report;
mod stage;
mod strangers;
mod together;
mod workers;

use std::time::Duration;

use tailroute_e2e::environment::setting;
use tokio::sync::{Mutex, MutexGuard};

/// Serialises the scenarios: each needs the machine for itself.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// Returns the duration of the hostile traffic.
fn seconds() -> Duration {
    Duration::from_secs_f64(setting("SECONDS", 2.0))
}

/// Returns the number of honest streams.
fn streams() -> usize {
    setting("STREAMS", 20)
}

/// Returns the divisor of the numbers of hostile connections: fewer streams go with fewer of those.
fn divided_by() -> usize {
    (200 / streams().max(1)).clamp(1, 10)
}

/// The processes' part; does nothing by itself.
#[test]
#[ignore = "a part that the other tests start as a process of its own"]
fn part() {
    tailroute_e2e::child::play();
}
