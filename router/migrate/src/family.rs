//! Flags that sglang-router, SMG and vllm-router share: the latter two began as copies of the first.

mod finish;
mod policy;

use crate::draft::ConfigDraft;
use crate::given::ParsedOption;
use crate::table::{OptionRow, rows};
use crate::workers;

pub(crate) use finish::{Defaults, finish};
use policy::policy;

pub(crate) const PAIRS: &str = "prefill and decode workers are not paired: a request is served by one worker";
const BACKOFF: &str =
    "a retry goes to another worker at once; failure.retry_share bounds how many requests are retried";
const NO_TOKENIZER: &str = "the tree is replaced by an index without a tokenizer, bounded by index.max_bytes";
const MODELS: &str = "several models need no mode: workers are asked for their models";

pub(crate) const TABLE: &[OptionRow] = rows! {
    jointly One "--host" "--port" => ("server.listen");
    by Any "--worker-urls" => ("workers.url", workers::add_all);

    by One "--policy" => ("routing.policy", policy);
    number One "--cache-threshold" => ("routing.cache_aware.match_threshold", 1.0);
    number One "--balance-abs-threshold" => ("routing.cache_aware.imbalance_abs", 1.0);
    number One "--balance-rel-threshold" => ("routing.cache_aware.imbalance_rel", 1.0);
    built_in One "--max-tree-size" => (NO_TOKENIZER);
    number One "--max-payload-size" => ("limits.max_body_bytes", 1.0);
    built_in Nothing "--enable-igw" => (MODELS);

    none Any "--prefill" "--decode" => (PAIRS);
    none One "--prefill-policy" "--decode-policy" => (PAIRS);
    none Any "--prefill-selector" "--decode-selector" => (PAIRS);
    none Nothing "--mini-lb" => ("a mode for debugging");
    none One "--worker-startup-timeout-secs"
        => ("the router starts at once; a worker joins when its probes succeed");
    none One "--worker-startup-check-interval" => ("health.interval_ms also applies to workers that start");

    jointly Nothing "--service-discovery" => ("discovery.kubernetes.pods");
    jointly Any "--selector" => ("discovery.kubernetes.pods");
    jointly One "--service-discovery-port" => ("discovery.kubernetes.port");
    jointly One "--service-discovery-namespace" => ("discovery.kubernetes.namespace");

    none One "--log-dir"
        => ("the log goes to standard error; redirect it, or let the service manager keep it");
    by One "--log-level" => ("log.level", log_level);
    jointly One "--prometheus-port" "--prometheus-host" => ("admin.listen");
    jointly Nothing "--enable-trace" => ("traces.endpoint");
    jointly One "--otlp-traces-endpoint" => ("traces.endpoint");

    none Any "--request-id-headers" => ("the header of request ids is x-request-id");
    by One "--request-timeout-secs"
        => ("failure.total_timeout_s, limits.first_byte_timeout_s", request_timeout);
    none Any "--cors-allowed-origins" => ("set http.cors_origins; by default all pages may use the API");
    jointly One "--max-concurrent-requests" => ("admission.max_concurrent_per_worker, limits.max_in_flight");
    by One "--queue-size" => ("admission.max_queue", queue_size);
    number One "--queue-timeout-secs" => ("admission.queue_timeout_s", 1.0);
    none One "--rate-limit-tokens-per-second"
        => ("rates belong to keys: set requests_per_s or tokens_per_min in [[keys]]");

    by One "--retry-max-retries" => ("limits.retries", retries);
    none One "--retry-initial-backoff-ms" "--retry-max-backoff-ms" "--retry-backoff-multiplier"
        "--retry-jitter-factor" => (BACKOFF);
    by Nothing "--disable-retries" => ("limits.retries", no_retries);

    number One "--cb-failure-threshold" => ("failure.breaker_failures", 1.0);
    none One "--cb-success-threshold"
        => ("one successful request closes a breaker; failure.slow_start_s then raises the worker's share");
    number One "--cb-timeout-duration-secs" => ("failure.breaker_pause_s", 1.0);
    none One "--cb-window-duration-secs" => ("the count of failures decays over ten seconds");
    by Nothing "--disable-circuit-breaker" => ("failure.max_ejected_share", no_breaker);

    number One "--health-failure-threshold" => ("health.unhealthy_after", 1.0);
    number One "--health-success-threshold" => ("health.healthy_after", 1.0);
    number One "--health-check-timeout-secs" => ("health.timeout_ms", 1e3);
    number One "--health-check-interval-secs" => ("health.interval_ms", 1e3);
    text One "--health-check-endpoint" => ("health.path");

    none One "--history-backend" => ("stored responses and conversations stay with the engines");
    none One "--backend" "--runtime"
        => ("engines are recognised by probes; hosted providers are not workers");
    none Nothing "--help" "--version" => ("prints and exits");
};

pub(crate) fn log_level(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
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

fn request_timeout(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let seconds = given.number()?;
    draft.set_number("failure.total_timeout_s", seconds, given.shown());
    draft.set_number("limits.first_byte_timeout_s", seconds, given.shown());
    Ok(())
}

fn queue_size(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let size = given.integer()?;
    if size < 1 {
        draft.note(given.shown(), "the shortest queue has one place");
    }
    draft.set("admission.max_queue", size.max(1), given.shown());
    Ok(())
}

/// Sets the number of retries. The source counts attempts, of which the first is no retry.
fn retries(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let attempts = given.integer()?;
    let retries = attempts.saturating_sub(1).max(0);
    draft.set_default(
        "limits.retries",
        retries,
        format!("{}, the first attempt included", given.shown()),
    );
    Ok(())
}

fn no_retries(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("limits.retries", 0, given.shown());
    Ok(())
}

fn no_breaker(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("failure.max_ejected_share", 0, given.shown());
    Ok(())
}
