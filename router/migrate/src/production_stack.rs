//! The router of vLLM's production-stack (`vllm-router`, `python -m vllm_router.app`), and the values of its Helm chart.

use crate::compose;
use crate::draft::Draft;
use crate::error::Error;
use crate::family::{PAIRS, log_level};
use crate::given::Given;
use crate::table::{Row, Takes, by, jointly, none, number, text};
use crate::workers;

use Takes::{Nothing, One};

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

pub(crate) const TABLE: &[Row] = &[
    jointly("--host", One, "server.listen"),
    jointly("--port", One, "server.listen"),
    none(
        "--root-path",
        One,
        "paths begin at the root; let a proxy in front remove the prefix",
    ),
    // discovery
    jointly("--service-discovery", One, "workers, discovery.kubernetes.pods"),
    none(
        "--k8s-service-discovery-type",
        One,
        "pods are reached by their addresses; to watch Services, set discovery.kubernetes.services",
    ),
    jointly("--static-backends", One, "workers.url"),
    jointly("--static-models", One, "workers.models"),
    none("--static-aliases", One, ALIASES),
    none("--static-model-types", One, NO_DUMMIES),
    none("--static-model-labels", One, MODELS),
    none("--static-backend-health-checks", Nothing, NO_DUMMIES),
    number(
        "--static-backend-health-check-interval",
        "health.interval_ms",
        1e3,
    ),
    number(
        "--static-backend-health-check-timeout-seconds",
        "health.timeout_ms",
        1e3,
    ),
    number("--backend-health-check-timeout-seconds", "health.timeout_ms", 1e3),
    jointly("--k8s-port", One, "discovery.kubernetes.port"),
    jointly("--k8s-namespace", One, "discovery.kubernetes.namespace"),
    jointly("--k8s-label-selector", One, "discovery.kubernetes.pods"),
    none(
        "--k8s-watcher-timeout-seconds",
        One,
        "a watch that is silent for 60 s is replaced",
    ),
    none(
        "--external-providers-config",
        One,
        "hosted providers are not workers",
    ),
    // routing
    by("--routing-logic", One, "routing.policy", routing_logic),
    by("--session-key", One, "routing.policy", session_key),
    none(
        "--prefix-min-match-length",
        One,
        "routing.cache_aware.match_threshold is a share of the prompt, not a length",
    ),
    none(
        "--kv-aware-threshold",
        One,
        "`tail` weighs every cached prefix against load, without a threshold",
    ),
    none("--prefill-model-labels", One, PAIRS),
    none("--decode-model-labels", One, PAIRS),
    number("--max-instance-failover-reroute-attempts", "limits.retries", 1.0),
    none("--request-rewriter", One, "bodies are forwarded as they came"),
    none("--callbacks", One, "there are no plugins within the router"),
    // statistics
    number("--engine-stats-interval", "health.queue_interval_ms", 1e3),
    number("--request-stats-window", "routing.utilisation_window_s", 1.0),
    none("--log-stats", Nothing, STATISTICS),
    none("--log-stats-interval", One, STATISTICS),
    // files and batches
    none("--enable-batch-api", Nothing, BATCH),
    none("--file-storage-class", One, BATCH),
    none("--file-storage-path", One, BATCH),
    none("--batch-processor", One, BATCH),
    // the program
    none("--dynamic-config-yaml", One, RELOAD),
    none("--dynamic-config-json", One, RELOAD),
    none("--feature-gates", One, "optional parts have keys of their own"),
    none("--version", Nothing, "prints and exits"),
    none("--help", Nothing, "prints and exits"),
    by("--log-level", One, "log.level", log_level),
    text("--log-format", "log.format"),
    none("--sentry-dsn", One, SENTRY).secret(),
    none("--sentry-traces-sample-rate", One, SENTRY),
    none("--sentry-profile-session-sample-rate", One, SENTRY),
    jointly("--otel-endpoint", One, "traces.endpoint"),
    text("--otel-service-name", "traces.service_name"),
    jointly("--otel-secure", Nothing, "traces.endpoint"),
    // caches
    none("--lmcache-controller-port", One, LMCACHE),
    none("--lmcache-controller-reply-port", One, LMCACHE),
    none("--lmcache-controller-heartbeat-port", One, LMCACHE),
    none("--lmcache-health-check-interval", One, LMCACHE),
    none("--lmcache-worker-timeout", One, LMCACHE),
    none("--semantic-cache-model", One, SEMANTIC),
    none("--semantic-cache-dir", One, SEMANTIC),
    none("--semantic-cache-threshold", One, SEMANTIC),
];

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

pub(crate) fn finish(draft: &mut Draft) -> Result<(), Error> {
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

fn discovery(draft: &mut Draft) -> Result<(), Error> {
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

fn in_kubernetes(draft: &mut Draft, kind: &Given, selector: Option<Given>) {
    let pods = selector.and_then(|given| Some((given.one().ok()?.to_owned(), given.shown())));
    let Some(pods) = pods else {
        let why = "expected --k8s-label-selector; set discovery.kubernetes.pods to a label selector";
        draft.note(kind.shown(), why);
        return;
    };
    let namespace = draft.take("--k8s-namespace").unwrap_or(Given {
        name: "--k8s-namespace".to_owned(),
        values: vec!["default".to_owned()],
        line: None,
        secret: false,
    });
    compose::kubernetes(draft, pods, ("--k8s-port", "8000"), Some(namespace));
}

/// Backends and models are paired by their positions; a backend may stand there once per model.
fn add_backends(draft: &mut Draft, backends: &Given, models: Option<&Given>) -> Result<(), Error> {
    let urls = backends.list();
    let names = models.map(Given::list).unwrap_or_default();
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

fn routing_logic(draft: &mut Draft, given: &Given) -> Result<(), String> {
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

fn session_key(draft: &mut Draft, given: &Given) -> Result<(), String> {
    if !given.one()?.eq_ignore_ascii_case("x-session-id") {
        let why = "the header that names a conversation is X-Session-ID: let clients, or a proxy in front, send that";
        draft.note(given.shown(), why);
    }
    Ok(())
}
