pub(super) mod access;
pub(super) mod admin_port;
pub(super) mod cache_events;
pub(super) mod cached_tokens;
pub(super) mod capacity;
pub(super) mod clients;
pub(super) mod clock;
pub(super) mod configuration;
pub(super) mod cost;
pub(super) mod health;
pub(super) mod hints;
pub(super) mod hits;
pub(super) mod objective;
pub(super) mod overload;
pub(super) mod prefix_caching;
pub(super) mod replicas;
pub(super) mod sharing;
pub(super) mod streams;
pub(super) mod workers;

use super::facts::WorkerFacts;
use super::verdict::CheckVerdict;

/// Returns the verdict about a fact that an older router does not report.
fn untold() -> CheckVerdict {
    CheckVerdict::unknown("this router does not tell it", "upgrade the router")
}

/// Returns the verdict about a fact that could not be read from the worker itself.
fn unreached(worker: &WorkerFacts) -> CheckVerdict {
    if !worker.is_up() {
        return CheckVerdict::unknown("it is not well", "see its health");
    }
    match &worker.direct.unreachable {
        Some(error) => CheckVerdict::unknown(
            format!("it cannot be reached from here: {error}"),
            "run doctor on a machine that reaches the worker, such as the router's",
        ),
        None => CheckVerdict::unknown("no prompts were sent", "run doctor without --no-probes"),
    }
}

fn duration(ms: f64) -> String {
    match ms / 1e3 {
        seconds if seconds < 0.0 => "0 s".to_owned(),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3_600.0),
    }
}
