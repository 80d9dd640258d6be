//! Keys that depend on several flags of the family.

use crate::compose::{self, Default};
use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::given::ParsedOption;

/// Defaults in which the routers of this family differ.
pub(crate) struct Defaults {
    pub(crate) host: &'static str,
    pub(crate) prometheus_host: &'static str,
}

const THRESHOLDS: [(&str, f64, &str); 3] = [
    (
        "routing.cache_aware.match_threshold",
        0.3,
        "--cache-threshold 0.3 (default)",
    ),
    (
        "routing.cache_aware.imbalance_abs",
        64.0,
        "--balance-abs-threshold 64 (default)",
    ),
    (
        "routing.cache_aware.imbalance_rel",
        1.5,
        "--balance-rel-threshold 1.5 (default)",
    ),
];

pub(crate) fn finish(draft: &mut ConfigDraft, defaults: &Defaults) -> Result<(), Error> {
    compose::listen(draft, ("--host", defaults.host), ("--port", "30000"))?;
    let host: Default = ("--prometheus-host", defaults.prometheus_host);
    compose::metrics(draft, host, ("--prometheus-port", "29000"))?;
    if THRESHOLDS.iter().any(|(key, ..)| draft.has(key)) {
        draft.set_default("routing.policy", "cache_aware", "--policy cache_aware (default)");
    }
    let policy = draft.entries.get("routing.policy");
    if policy.is_some_and(|entry| entry.value.as_str() == Some("cache_aware")) {
        for (key, number, from) in THRESHOLDS {
            if !draft.has(key) {
                draft.set_number(key, number, from);
            }
        }
    }
    discovery(draft);
    traces(draft);
    concurrency(draft)?;
    compose::agree(draft, 60.0);
    compose::one_key(draft);
    Ok(())
}

fn discovery(draft: &mut ConfigDraft) {
    const PORT: Default = ("--service-discovery-port", "80");
    let is_on = draft.take("--service-discovery").is_some();
    let selector = draft.take("--selector").filter(|given| !given.list().is_empty());
    match (is_on, selector) {
        (true, Some(selector)) => {
            let namespace = draft.take("--service-discovery-namespace");
            let pods = (selector.list().join(","), selector.shown());
            compose::kubernetes(draft, pods, PORT, namespace);
        }
        (true, None) => {
            let why = "expected --selector; set discovery.kubernetes.pods to a label selector";
            draft.note("--service-discovery", why);
        }
        (false, selector) => {
            let port = draft.take(PORT.0);
            let namespace = draft.take("--service-discovery-namespace");
            for given in [selector, port, namespace].into_iter().flatten() {
                draft.note(given.shown(), "has no effect without --service-discovery");
            }
        }
    }
}

fn traces(draft: &mut ConfigDraft) {
    let is_on = draft.take("--enable-trace").is_some();
    let given = draft.take("--otlp-traces-endpoint");
    if is_on {
        let endpoint = given.unwrap_or(ParsedOption {
            name: "--otlp-traces-endpoint".to_owned(),
            values: vec!["localhost:4317".to_owned()],
            line: None,
            secret: false,
        });
        let from = format!("--enable-trace {}", endpoint.shown());
        compose::traces(draft, &endpoint, false, from);
    } else if let Some(given) = given {
        draft.note(given.shown(), "has no effect without --enable-trace");
    }
}

/// Divides the limit on all requests among the workers, if their number is known: queues form at limits per worker.
fn concurrency(draft: &mut ConfigDraft) -> Result<(), Error> {
    let Some(given) = draft.take("--max-concurrent-requests") else {
        return Ok(());
    };
    let limit = given
        .integer()
        .map_err(|what| Error::wrong(given.place(), what))?;
    let shown = given.shown();
    if limit <= 0 {
        let why = "the number of requests is always limited: limits.max_in_flight is 4096 unless it is set";
        draft.note(shown, why);
        return Ok(());
    }
    let workers = draft.workers.len() as i64;
    let queue = draft.number("admission.max_queue").unwrap_or(0.0) as i64;
    draft.set("limits.max_in_flight", limit.saturating_add(queue), shown.clone());
    if workers > 0 && !draft.has("discovery.kubernetes.pods") {
        let each = limit.saturating_add(workers - 1) / workers;
        let from = format!("{shown}, divided among {workers} workers");
        draft.set("admission.max_concurrent_per_worker", each, from);
    } else {
        let why =
            "requests beyond the limit are refused; to queue them, set admission.max_concurrent_per_worker";
        draft.note(shown, why);
    }
    Ok(())
}
