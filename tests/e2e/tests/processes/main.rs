//! The router and its workers as processes: behaviour that shows only when one of them is killed, or runs for long.
//!
//! Each process is this test program, started again as one part ([`tailroute_e2e::child`]), so nothing has to be
//! built first, and the router is the `tailroute` command line itself.
//!
//! | scenario | at length |
//! |---|---|
//! | `files` | – |
//! | `idle` | – |
//! | `log` | – |
//! | `kill` | `SECONDS=20 STRICT=1 make kill` |
//! | `soak` | `make soak` (`SECONDS=600 STREAMS=1000`, `JSON=1` for JSON lines) |
//! | `survival` | – |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests and their helpers, whose reports go to standard output"
)]

mod files;
mod idle;
mod kill;
mod log;
mod soak;
mod survival;

/// Returns the p-th quantile; zero for no values.
fn quantile(times: &mut [f64], p: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = (p * times.len().saturating_sub(1) as f64).round() as usize;
    times.get(at).copied().unwrap_or(0.0)
}

/// The processes' part; does nothing by itself.
#[test]
#[ignore = "a part that the other tests start as a process of its own"]
fn part() {
    tailroute_e2e::child::play();
}
