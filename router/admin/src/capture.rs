//! Captures the newest turns in memory, so that other policies can be evaluated on them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Method;
use bytes::Bytes;
use config::Role;
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::reason::{Because, Reason};
use crate::Admin;
use operator::recent::DEFAULT_BYTES;

/// Bytes per piece of the streamed response.
const PART_BYTES: usize = 64 * 1024;

/// State of the capture.
#[derive(Debug, Serialize, JsonSchema)]
struct CaptureStatus {
    /// Whether turns are being captured.
    running: bool,
    /// Number of captured turns.
    turns: usize,
    /// Size of the captured turns in bytes.
    bytes: usize,
    /// Largest size of the captured turns in bytes, beyond which the oldest are dropped.
    max_bytes: usize,
    /// Time at which the capture was started, in milliseconds since 1970; `null` if none was.
    since_unix_ms: Option<u64>,
    /// Number of turns left out because each exceeds half of `max_bytes`.
    left_out: u64,
}

/// Body of a request to start a capture.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
    /// Largest size of the captured turns in bytes; 16 MiB unless given.
    #[serde(default)]
    #[schemars(range(min = 65_536, max = 268_435_456))]
    max_bytes: Option<u32>,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<CaptureStatus, _, _>(
            "capture.get",
            "/admin/v1/capture",
            "Whether turns are captured in memory, and how many are stored",
            |call: Call| async move { Reply::json(&status(&call.admin)) },
        ),
        Operation::new::<CaptureStatus, _, _>(
            "capture.start",
            Method::POST,
            "/admin/v1/capture/start",
            Role::Operate,
            "Start capturing turns in memory: lengths and counts, no text; discards the previous capture",
            start,
        )
        .body::<Start>(),
        Operation::new::<CaptureStatus, _, _>(
            "capture.stop",
            Method::POST,
            "/admin/v1/capture/stop",
            Role::Operate,
            "Stop the capture; stored turns are kept",
            stop,
        )
        .body::<Because>()
        .fails(&[409]),
        Operation::get::<String, _, _>(
            "capture.turns",
            "/admin/v1/capture/turns",
            "The captured turns, as a trace for `tailroute replay`",
            turns,
        )
        .of_type("application/x-ndjson")
        .fails(&[409, 429]),
    ]
}

fn status(admin: &Admin) -> CaptureStatus {
    let now = admin.captures().now();
    let (turns, bytes) = now.as_ref().map_or((0, 0), |running| running.memory.size());
    CaptureStatus {
        running: now.as_ref().is_some_and(|running| running.is_running()),
        turns,
        bytes,
        max_bytes: now.as_ref().map_or(DEFAULT_BYTES, |running| running.max_bytes),
        since_unix_ms: now.as_ref().map(|running| running.since_unix_ms),
        left_out: now.as_ref().map_or(0, |running| running.memory.left_out()),
    }
}

async fn start(call: Call) -> Result<Reply, Problem> {
    let asked: Start = call.body()?;
    let before = status(&call.admin);
    let bytes = asked.max_bytes.map_or(DEFAULT_BYTES, |bytes| bytes as usize);
    call.admin
        .captures()
        .start(bytes, &call.admin.state.routing.metrics.captured());
    let after = status(&call.admin);
    Ok(Reply::json(&after)?.changed(&before, &after))
}

async fn stop(call: Call) -> Result<Reply, Problem> {
    let _: Because = call.body()?;
    let before = status(&call.admin);
    record_fleet(&call.admin);
    if !call.admin.captures().stop() {
        return Err(Problem::conflict("no capture is running"));
    }
    let after = status(&call.admin);
    Ok(Reply::json(&after)?.changed(&before, &after))
}

fn record_fleet(admin: &Admin) {
    let running = admin.captures().now().filter(|running| running.is_running());
    if let Some((running, fleet)) = running.zip(admin.state.routing.fleet_in_use()) {
        running.memory.fleet(&fleet);
    }
}

async fn turns(call: Call) -> Result<Reply, Problem> {
    record_fleet(&call.admin);
    match call.admin.captures().now() {
        Some(running) => {
            let place = Arc::clone(&call.admin.state.operations.operator.turn_readers).try_acquire_owned();
            let place = place.map_err(|_| Problem::busy("the turns are already being read"))?;
            let memory = running.memory.clone();
            // The permit moves into the task: a client that disconnects frees it only when the task is done.
            let (turns, place) = written(move || (memory.newest(usize::MAX), place)).await?;
            let turns = Bytes::from(turns);
            let parts = stream::unfold((turns, place), |(mut turns, place)| async move {
                let part = turns.split_to(PART_BYTES.min(turns.len()));
                (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (turns, place)))
            });
            Ok(Reply::of_type("application/x-ndjson", Body::from_stream(parts)))
        }
        None => Err(none_captured()),
    }
}

/// Runs a function that serialises turns on a blocking thread. Fails if it panics.
pub(super) async fn written<T: Send + 'static>(
    write: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let written = tokio::task::spawn_blocking(write).await;
    written.map_err(|error| Problem::internal(format!("cannot write the turns: {error}")))
}

pub(super) fn none_captured() -> Problem {
    Problem::conflict(
        "no turns were captured: `POST /admin/v1/capture/start` (`tailroute ctl capture start`), and wait for traffic",
    )
}
