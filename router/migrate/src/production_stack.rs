//! The table of the router of vLLM's production-stack (`vllm-router`, `python -m vllm_router.app`), and the values of
//! its Helm chart.

use crate::compose;
use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::family::{PAIRS, log_level};
use crate::given::ParsedOption;
use crate::table::{OptionRow, rows};
use crate::workers;

const MODELS: &str = "workers are asked for their models";
const ALIASES: &str = "models have no aliases; start the engine with several --served-model-name";
const NO_DUMMIES: &str = "probes ask health.path and send no requests to models";
const BATCH: &str = "batches and files are forwarded to a worker that offers them";
const SENTRY: &str = "errors are in the log and in the traces; Sentry is not supported";
const LMCACHE: &str =
    "caches are known from the engines' cache events and answers; the LMCache controller is not asked";
const SEMANTIC: &str = "answers are not cached by meaning";
const STATISTICS: &str = "statistics are metrics (GET /metrics of the admin port), not log lines";
const RELOAD: &str = "tailroute reloads its own file when it changes; migrate that file too";

pub(crate) const TABLE: &[OptionRow] = rows! {
    jointly One "--host" "--port" => ("server.listen");
    none One "--root-path" => ("paths begin at the root; let a proxy in front remove the prefix");

    jointly One "--service-discovery" => ("workers, discovery.kubernetes.pods");
    none One "--k8s-service-discovery-type"
        => ("pods are reached by their addresses; to watch Services, set discovery.kubernetes.services");
    jointly One "--static-backends" => ("workers.url");
    jointly One "--static-models" => ("workers.models");
    none One "--static-aliases" => (ALIASES);
    none One "--static-model-types" => (NO_DUMMIES);
    none One "--static-model-labels" => (MODELS);
    none Nothing "--static-backend-health-checks" => (NO_DUMMIES);
    number One "--static-backend-health-check-interval" => ("health.interval_ms", 1e3);
    number One "--static-backend-health-check-timeout-seconds" "--backend-health-check-timeout-seconds"
        => ("health.timeout_ms", 1e3);
    jointly One "--k8s-port" => ("discovery.kubernetes.port");
    jointly One "--k8s-namespace" => ("discovery.kubernetes.namespace");
    jointly One "--k8s-label-selector" => ("discovery.kubernetes.pods");
    none One "--k8s-watcher-timeout-seconds" => ("a watch that is silent for 60 s is replaced");
    none One "--external-providers-config" => ("hosted providers are not workers");

    by One "--routing-logic" => ("routing.policy", routing_logic);
    by One "--session-key" => ("routing.policy", session_key);
    none One "--prefix-min-match-length"
        => ("routing.cache_aware.match_threshold is a share of the prompt, not a length");
    none One "--kv-aware-threshold"
        => ("`tail` weighs every cached prefix against load, without a threshold");
    none One "--prefill-model-labels" "--decode-model-labels" => (PAIRS);
    number One "--max-instance-failover-reroute-attempts" => ("limits.retries", 1.0);
    none One "--request-rewriter" => ("bodies are forwarded as they came");
    none One "--callbacks" => ("there are no plugins within the router");

    number One "--engine-stats-interval" => ("health.queue_interval_ms", 1e3);
    number One "--request-stats-window" => ("routing.utilisation_window_s", 1.0);
    none Nothing "--log-stats" => (STATISTICS);
    none One "--log-stats-interval" => (STATISTICS);

    none Nothing "--enable-batch-api" => (BATCH);
    none One "--file-storage-class" "--file-storage-path" "--batch-processor" => (BATCH);

    none One "--dynamic-config-yaml" "--dynamic-config-json" => (RELOAD);
    none One "--feature-gates" => ("each optional part has its own keys");
    none Nothing "--version" "--help" => ("prints and exits");
    by One "--log-level" => ("log.level", log_level);
    text One "--log-format" => ("log.format");
    secret One "--sentry-dsn" => (SENTRY);
    none One "--sentry-traces-sample-rate" "--sentry-profile-session-sample-rate" => (SENTRY);
    jointly One "--otel-endpoint" => ("traces.endpoint");
    text One "--otel-service-name" => ("traces.service_name");
    jointly Nothing "--otel-secure" => ("traces.endpoint");

    none One "--lmcache-controller-port" "--lmcache-controller-reply-port"
        "--lmcache-controller-heartbeat-port" "--lmcache-health-check-interval" "--lmcache-worker-timeout"
        => (LMCACHE);
    none One "--semantic-cache-model" "--semantic-cache-dir" "--semantic-cache-threshold" => (SEMANTIC);
};

/// Keys of the chart below `routerSpec`, and the flags that the chart makes of them.
pub(crate) const CHART: &[(&str, &str)] = &[
    ("containerPort", "--port"),
    ("serviceDiscovery", "--service-discovery"),
    ("k8sServiceDiscoveryType", "--k8s-service-discovery-type"),
    ("staticBackends", "--static-backends"),
    ("staticModels", "--static-models"),
    ("routingLogic", "--routing-logic"),
    ("prefixMinMatchLength", "--prefix-min-match-length"),
    ("sessionKey", "--session-key"),
    ("rootPath", "--root-path"),
    ("engineScrapeInterval", "--engine-stats-interval"),
    ("requestStatsWindow", "--request-stats-window"),
    ("lmcacheControllerPort", "--lmcache-controller-port"),
    ("lmcacheControllerReplyPort", "--lmcache-controller-reply-port"),
    (
        "lmcacheControllerHeartbeatPort",
        "--lmcache-controller-heartbeat-port",
    ),
    ("otel.endpoint", "--otel-endpoint"),
    ("otel.serviceName", "--otel-service-name"),
    ("otel.secure", "--otel-secure"),
];

pub(crate) fn finish(draft: &mut ConfigDraft) -> Result<(), Error> {
    compose::listen(draft, ("--host", "0.0.0.0"), ("--port", "8001"))?;
    discovery(draft)?;
    let is_secure = draft.take("--otel-secure");
    match (draft.take("--otel-endpoint"), is_secure) {
        (Some(endpoint), secure) => {
            let shown = secure.as_ref().map(|given| format!(" {}", given.shown()));
            let from = format!("{}{}", endpoint.shown(), shown.unwrap_or_default());
            compose::traces(draft, &endpoint, secure.is_some(), from);
        }
        (None, Some(secure)) => draft.note(secure.shown(), "has no effect without --otel-endpoint"),
        (None, None) => {}
    }
    compose::agree(draft, 60.0);
    Ok(())
}

fn discovery(draft: &mut ConfigDraft) -> Result<(), Error> {
    let kind = draft.take("--service-discovery");
    let name = kind
        .as_ref()
        .and_then(|given| given.one().ok())
        .unwrap_or_default();
    let backends = draft.take("--static-backends");
    let models = draft.take("--static-models");
    let selector = draft.take("--k8s-label-selector");
    match (name, &kind) {
        ("k8s", Some(kind)) => in_kubernetes(draft, kind, selector),
        ("static" | "external-only", _) | (_, None) => {
            let others = ["--k8s-port", "--k8s-namespace"].map(|name| draft.take(name));
            for given in others.into_iter().chain([selector]).flatten() {
                draft.note(given.shown(), "has no effect without --service-discovery k8s");
            }
            if let (Some(kind), "external-only") = (&kind, name) {
                draft.note(kind.shown(), "hosted providers are not workers");
            }
            if let Some(backends) = &backends {
                add_backends(draft, backends, models.as_ref())?;
            }
            return Ok(());
        }
        (_, Some(kind)) => {
            return Err(Error::wrong(
                kind.place(),
                "expected static, k8s or external-only",
            ));
        }
    }
    for given in [backends, models].into_iter().flatten() {
        draft.note(given.shown(), "has no effect with --service-discovery k8s");
    }
    Ok(())
}

fn in_kubernetes(draft: &mut ConfigDraft, kind: &ParsedOption, selector: Option<ParsedOption>) {
    let pods = selector.and_then(|given| Some((given.one().ok()?.to_owned(), given.shown())));
    let Some(pods) = pods else {
        let why = "expected --k8s-label-selector; set discovery.kubernetes.pods to a label selector";
        draft.note(kind.shown(), why);
        return;
    };
    let namespace = draft.take("--k8s-namespace").unwrap_or(ParsedOption {
        name: "--k8s-namespace".to_owned(),
        values: vec!["default".to_owned()],
        line: None,
        secret: false,
    });
    compose::kubernetes(draft, pods, ("--k8s-port", "8000"), Some(namespace));
}

/// Adds the backends as workers. Backends and models are paired by their positions; a backend may be listed once per
/// model.
fn add_backends(
    draft: &mut ConfigDraft,
    backends: &ParsedOption,
    models: Option<&ParsedOption>,
) -> Result<(), Error> {
    let urls = backends.list();
    let names = models.map(ParsedOption::list).unwrap_or_default();
    if let Some(models) = models.filter(|_| names.len() != urls.len()) {
        let what = format!(
            "{} models for {} backends; expected one for each",
            names.len(),
            urls.len()
        );
        return Err(Error::wrong(models.place(), what));
    }
    let from = match models {
        Some(models) => format!("{} and {}", backends.name, models.name),
        None => backends.name.clone(),
    };
    for (at, url) in urls.into_iter().enumerate() {
        workers::add(draft, url, names.get(at..=at).unwrap_or_default(), &from);
    }
    Ok(())
}

fn routing_logic(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let shown = given.shown();
    match given.one()? {
        "roundrobin" => draft.set("routing.policy", "round_robin", shown),
        "session" => draft.set("routing.policy", "consistent_hash", shown),
        "prefixaware" => {
            draft.set("routing.policy", "cache_aware", shown.clone());
            draft.set(
                "routing.cache_aware.match_threshold",
                0.0,
                format!("{shown}: the longest match"),
            );
            let why = "becomes cache_aware, which also balances load (routing.cache_aware.imbalance_abs)";
            draft.note(shown, why);
        }
        "kvaware" => {
            draft.set("routing.policy", "tail", shown.clone());
            draft.note(
                shown,
                "becomes tail, which follows the engines' cache events instead of the LMCache controller",
            );
        }
        "disaggregated_prefill" | "disaggregated_prefill_orchestrated" => draft.note(shown, PAIRS),
        _ => draft.note(shown, "no policy of this kind; tailroute's own, `tail`, is used"),
    }
    Ok(())
}

fn session_key(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    if !given.one()?.eq_ignore_ascii_case("x-session-id") {
        let why = "the header that names a conversation is X-Session-ID: let clients, or a proxy in front, send that";
        draft.note(given.shown(), why);
    }
    Ok(())
}
