//! The worker is healthy, and has been for a while.

use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;
use super::duration;

const RECENT_MS: f64 = 300_000.0;
/// Time within which all workers become ready after the router's start.
const START_MS: f64 = 60_000.0;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    match worker.state.as_str() {
        "unwell" => return unwell(facts, worker),
        "starting" => {
            return CheckVerdict::unknown(
                "its first probes have not succeeded yet",
                "run doctor again in some seconds",
            );
        }
        "not_ready" => {
            return CheckVerdict::warning(
                "its source says that it is not ready",
                "look at it in Kubernetes or in the discovery file; GET /admin/v1/discovery",
            );
        }
        "asleep" => {
            return CheckVerdict::warning(
                "its engine sleeps, and it gets turns only if no other worker can take them",
                "wake it, if that is not intended: POST /wake_up at the engine",
            );
        }
        "cordoned" | "draining" | "drained" | "leaving" => {
            return CheckVerdict::warning(
                format!("it is {} and gets no new turns", worker.state),
                format!(
                    "if that is no longer intended: tailroute ctl workers uncordon {} --reason …",
                    worker.name
                ),
            );
        }
        _ => {}
    }
    match worker.breaker.as_str() {
        "open" => CheckVerdict::problem(
            "its breaker is open, because its requests fail",
            "find out why: the worker's log, and tailroute ctl decisions (worker and outcome)",
        ),
        "half_open" => CheckVerdict::warning(
            "its breaker lets one request pass, after its requests failed",
            "find out why they failed: the worker's log, and tailroute ctl decisions",
        ),
        _ => unread(worker).unwrap_or_else(|| restart(facts, worker)),
    }
}

/// The verdict about a worker whose list of models cannot be read. A probe or two may fail without consequence.
fn unread(worker: &WorkerFacts) -> Option<CheckVerdict> {
    let mut facts = worker.facts.iter();
    let models = facts.find(|fact| fact.fact == "models")?;
    let (error, for_s) = (models.error.as_ref()?, models.failing_for_s?);
    let found = format!(
        "its models cannot be read (GET /v1/models) for {}: {error}",
        duration(for_s * 1e3)
    );
    let action = "let the router read the list, or name its models in workers[].models (docs/engines.md)";
    Some(match models.value {
        None => CheckVerdict::problem(
            format!("{found}; it gets no request for a model that another worker lists"),
            action,
        ),
        Some(_) => CheckVerdict::warning(format!("{found}; the last list is used"), action),
    })
}

fn unwell(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let mut found = match worker.since_unix_ms {
        Some(since) => format!(
            "its probes have failed for {}",
            duration(facts.now_unix_ms - since)
        ),
        None => "its probes fail".to_owned(),
    };
    let error = worker.last_error.as_ref().or(worker.direct.unreachable.as_ref());
    if let Some(error) = error {
        found.push_str(&format!(": {error}"));
    }
    CheckVerdict::problem(
        found,
        "curl -i WORKER_URL/health from the router's host. Connection refused: start the worker, or fix the network. \
         401: set workers[].api_key_file. 404: set health.path. Slow under load: raise health.timeout_ms",
    )
}

/// Reports a worker that became ready, or whose process began, long after the router and not long ago.
fn restart(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let now = facts.now_unix_ms;
    let age = |began: Option<f64>, grace: f64| {
        let began = began?;
        let router = facts.configuration.started_unix_ms?;
        (began > router + grace && now - began < RECENT_MS).then_some(now - began)
    };
    let started = age(worker.direct.started_unix_ms, 0.0);
    match started.or_else(|| age(worker.ready_since_unix_ms, START_MS)) {
        Some(age) => CheckVerdict::warning(
            format!(
                "it became ready {} ago: it is new, or was restarted, or its probes failed",
                duration(age)
            ),
            "if that was not intended, read the worker's log; its cache fills again by itself",
        ),
        None => CheckVerdict::ok("it is healthy"),
    }
}
