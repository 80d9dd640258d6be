//! Flags that sglang-router, SMG and vllm-router share: the latter two began as copies of the first.

mod finish;
mod policy;

use crate::draft::Draft;
use crate::given::Given;
use crate::table::{Row, Takes, built_in, by, jointly, none, number, text};
use crate::workers;

use Takes::{Any, Nothing, One};
pub(crate) use finish::{Defaults, finish};
use policy::policy;

pub(crate) const PAIRS: &str = "prefill and decode workers are not paired: a request is served by one worker";
const BACKOFF: &str =
    "a retry goes to another worker at once; failure.retry_share bounds how many requests are retried";
const NO_TOKENIZER: &str = "the tree is replaced by an index without a tokenizer, bounded by index.max_bytes";
const MODELS: &str = "several models need no mode: workers are asked for their models";

pub(crate) const TABLE: &[Row] = &[
    jointly("--host", One, "server.listen"),
    jointly("--port", One, "server.listen"),
    by("--worker-urls", Any, "workers.url", workers::add_all),
    // routing
    by("--policy", One, "routing.policy", policy),
    number("--cache-threshold", "routing.cache_aware.match_threshold", 1.0),
    number(
        "--balance-abs-threshold",
        "routing.cache_aware.imbalance_abs",
        1.0,
    ),
    number(
        "--balance-rel-threshold",
        "routing.cache_aware.imbalance_rel",
        1.0,
    ),
    built_in("--max-tree-size", One, NO_TOKENIZER),
    number("--max-payload-size", "limits.max_body_bytes", 1.0),
    built_in("--enable-igw", Nothing, MODELS),
    // prefill and decode
    none("--prefill", Any, PAIRS),
    none("--decode", Any, PAIRS),
    none("--prefill-policy", One, PAIRS),
    none("--decode-policy", One, PAIRS),
    none("--prefill-selector", Any, PAIRS),
    none("--decode-selector", Any, PAIRS),
    none("--mini-lb", Nothing, "a mode for debugging"),
    none(
        "--worker-startup-timeout-secs",
        One,
        "the router starts at once; a worker joins when its probes succeed",
    ),
    none(
        "--worker-startup-check-interval",
        One,
        "health.interval_ms also applies to workers that start",
    ),
    // discovery
    jointly("--service-discovery", Nothing, "discovery.kubernetes.pods"),
    jointly("--selector", Any, "discovery.kubernetes.pods"),
    jointly("--service-discovery-port", One, "discovery.kubernetes.port"),
    jointly(
        "--service-discovery-namespace",
        One,
        "discovery.kubernetes.namespace",
    ),
    // logs, metrics, traces
    none(
        "--log-dir",
        One,
        "the log goes to standard error; redirect it, or let the service manager keep it",
    ),
    by("--log-level", One, "log.level", log_level),
    jointly("--prometheus-port", One, "admin.listen"),
    jointly("--prometheus-host", One, "admin.listen"),
    jointly("--enable-trace", Nothing, "traces.endpoint"),
    jointly("--otlp-traces-endpoint", One, "traces.endpoint"),
    // requests
    none(
        "--request-id-headers",
        Any,
        "the header of request ids is x-request-id",
    ),
    by(
        "--request-timeout-secs",
        One,
        "failure.total_timeout_s, limits.first_byte_timeout_s",
        request_timeout,
    ),
    none(
        "--cors-allowed-origins",
        Any,
        "CORS headers are not sent; use a proxy in front that adds them",
    ),
    jointly(
        "--max-concurrent-requests",
        One,
        "admission.max_concurrent_per_worker, limits.max_in_flight",
    ),
    by("--queue-size", One, "admission.max_queue", queue_size),
    number("--queue-timeout-secs", "admission.queue_timeout_s", 1.0),
    none(
        "--rate-limit-tokens-per-second",
        One,
        "rates belong to keys: set requests_per_s or tokens_per_min in [[keys]]",
    ),
    // retries
    by("--retry-max-retries", One, "limits.retries", retries),
    none("--retry-initial-backoff-ms", One, BACKOFF),
    none("--retry-max-backoff-ms", One, BACKOFF),
    none("--retry-backoff-multiplier", One, BACKOFF),
    none("--retry-jitter-factor", One, BACKOFF),
    by("--disable-retries", Nothing, "limits.retries", no_retries),
    // breaker
    number("--cb-failure-threshold", "failure.breaker_failures", 1.0),
    none(
        "--cb-success-threshold",
        One,
        "one successful request closes a breaker; failure.slow_start_s then raises the worker's share",
    ),
    number("--cb-timeout-duration-secs", "failure.breaker_pause_s", 1.0),
    none(
        "--cb-window-duration-secs",
        One,
        "the count of failures decays over ten seconds",
    ),
    by(
        "--disable-circuit-breaker",
        Nothing,
        "failure.max_ejected_share",
        no_breaker,
    ),
    // health
    number("--health-failure-threshold", "health.unhealthy_after", 1.0),
    number("--health-success-threshold", "health.healthy_after", 1.0),
    number("--health-check-timeout-secs", "health.timeout_ms", 1e3),
    number("--health-check-interval-secs", "health.interval_ms", 1e3),
    text("--health-check-endpoint", "health.path"),
    // the program
    none(
        "--history-backend",
        One,
        "stored responses and conversations stay with the engines",
    ),
    none(
        "--backend",
        One,
        "engines are recognised by probes; hosted providers are not workers",
    ),
    none(
        "--runtime",
        One,
        "engines are recognised by probes; hosted providers are not workers",
    ),
    none("--help", Nothing, "prints and exits"),
    none("--version", Nothing, "prints and exits"),
];

pub(crate) fn log_level(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let level = match given.one()?.to_ascii_lowercase().as_str() {
        "error" | "critical" | "crit" | "alert" | "emerg" => "error",
        "warn" | "warning" => "warn",
        "info" | "notice" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return Err("expected a level such as info or warning".to_owned()),
    };
    draft.set("log.level", level, given.shown());
    Ok(())
}

fn request_timeout(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let seconds = given.number()?;
    draft.set_number("failure.total_timeout_s", seconds, given.shown());
    draft.set_number("limits.first_byte_timeout_s", seconds, given.shown());
    Ok(())
}

fn queue_size(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let size = given.integer()?;
    if size < 1 {
        draft.note(given.shown(), "the shortest queue has one place");
    }
    draft.set("admission.max_queue", size.max(1), given.shown());
    Ok(())
}

/// The source counts attempts, of which the first is no retry.
fn retries(draft: &mut Draft, given: &Given) -> Result<(), String> {
    let attempts = given.integer()?;
    let retries = attempts.saturating_sub(1).max(0);
    draft.set_default(
        "limits.retries",
        retries,
        format!("{}, the first attempt included", given.shown()),
    );
    Ok(())
}

fn no_retries(draft: &mut Draft, given: &Given) -> Result<(), String> {
    draft.set("limits.retries", 0, given.shown());
    Ok(())
}

fn no_breaker(draft: &mut Draft, given: &Given) -> Result<(), String> {
    draft.set("failure.max_ejected_share", 0, given.shown());
    Ok(())
}
