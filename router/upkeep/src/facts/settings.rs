//! An engine's settings: dialect, cache policy, capacity, and whether inputs are shared.

use std::sync::Arc;

use bytes::Bytes;
use config::{CachePolicy, Dialect};
use http::Method;
use policy::units::Millis;
use tracing::{debug, info, warn};

use fleet::cache_policy::{self, ReportedPolicy};
use fleet::dialect::sglang;
use fleet::facts::{Fact, FactChange, FactSource, Query};
use fleet::{Worker, dialect};
use proxy::Proxy;
use state::Routing;
use state::State;
use state::control;

/// Queries a worker for its settings, and applies them.
pub(super) async fn ask(proxy: &Proxy, worker: &Arc<Worker>) {
    let is_first = worker.facts.known(Fact::Dialect).is_none();
    let says = documents(proxy, worker).await;
    let now = proxy.state.routing.clock.now();
    if says.told_info {
        let shares = says.info.as_deref().is_some_and(sglang::caches_inputs);
        worker.facts.learn_shared_inputs(now, shares);
    }
    let mut error = says.error.clone();
    // An unread document keeps the previous dialect and policy.
    if is_first || error.is_none() {
        take_policy(&proxy.state.routing, worker, now, &says);
        take_dialect(proxy, worker, now, &says).await;
    }
    let learned = super::super::capacity::learn(&proxy.state, worker, [&says.capabilities, &says.info]).await;
    error = error.or(learned.err());
    if worker.facts.known(Fact::Sleep).is_none() {
        super::ask_sleep(&proxy.state, worker).await;
    }
    finish(&proxy.state.routing, worker, error);
}

/// Records the end of the query, and the time at which to repeat it.
fn finish(routing: &Routing, worker: &Worker, error: Option<String>) {
    let health = &routing.config.health;
    let [probe, interval] =
        [health.interval, health.facts_interval].map(|time| Millis(time.as_secs_f64() * 1e3));
    let now = routing.clock.now();
    match error {
        None => {
            worker.facts.answered(Query::Settings, now, interval);
        }
        Some(error) => {
            let pauses = [probe, interval.max(probe)];
            if worker.facts.failed(Query::Settings, now, error.clone(), pauses) {
                info!(
                    worker = worker.name(),
                    error, "settings not read; the query is repeated"
                );
            }
        }
    }
}

#[derive(Default)]
struct Says {
    capabilities: Option<Bytes>,
    info: Option<Bytes>,
    /// Whether the server info was requested and answered, even if negatively.
    told_info: bool,
    /// Reason why a document could not be read.
    error: Option<String>,
}

/// Queries a worker for the settings that its configuration leaves open.
async fn documents(proxy: &Proxy, worker: &Worker) -> Says {
    let spec = &worker.spec;
    let policy_is_open = spec.cache_policy == CachePolicy::Auto;
    let mut says = Says::default();
    if policy_is_open || matches!(spec.dialect, Dialect::Auto | Dialect::Tailroute) {
        says.capabilities = fetch(&proxy.state, worker, "/v1/tailroute", &mut says.error).await;
    }
    let said = |document: &Option<Bytes>| {
        document
            .as_deref()
            .map_or(ReportedPolicy::Nothing, ReportedPolicy::of)
    };
    let has_dialect = says
        .capabilities
        .as_deref()
        .and_then(dialect::Tailroute::of)
        .is_some();
    if (policy_is_open && said(&says.capabilities) == ReportedPolicy::Nothing)
        || (spec.dialect == Dialect::Auto && !has_dialect)
        || proxy.admission.keys().is_required()
    {
        let mut error = None;
        says.info = fetch(&proxy.state, worker, "/server_info", &mut error).await;
        says.told_info = error.is_none();
        says.error = says.error.or(error);
    }
    says
}

/// Fetches a document. An engine that does not serve the path has none. Any other failure is noted in `unread`.
async fn fetch(state: &State, worker: &Worker, path: &str, unread: &mut Option<String>) -> Option<Bytes> {
    match control::call(&state.transport, worker, Method::GET, path, None).await {
        Ok(answer) => Some(answer),
        Err(error) => {
            debug!(worker = worker.name(), path, %error, "no answer to an introspection request");
            if !error.is_absence() {
                *unread = Some(format!("{path}: {error}"));
            }
            None
        }
    }
}

async fn take_dialect(proxy: &Proxy, worker: &Worker, now: Millis, says: &Says) {
    let (found, source) = dialect(worker, says);
    let before = worker.dialect();
    // A healthy engine loses no plugin; its document is missing for a moment.
    let is_lost = source == FactSource::Assumed && is_probed(worker);
    if is_lost {
        return;
    }
    let change = worker.facts.learn_dialect(now, found, source);
    let dialect = worker.dialect();
    if change == FactChange::Changed {
        info!(
            worker = worker.name(),
            before = before.name(),
            dialect = dialect.name(),
            "the worker's dialect changed"
        );
    }
    if change == FactChange::First {
        info!(
            worker = worker.name(),
            dialect = dialect.name(),
            models = worker.models().map(|listed| listed.names().len()),
            "introduced"
        );
        if proxy.state.config.learning.costs {
            super::super::learner::introduce(&proxy.state.routing, worker.id);
        }
    }
    if change != FactChange::Same {
        worker.hints.restarted();
        super::super::learner::queue_objective(&proxy.state.routing, worker);
        super::super::hints::send_objective(proxy, worker).await;
    }
}

fn is_probed(worker: &Worker) -> bool {
    let known = worker.facts.known(Fact::Dialect);
    known.is_some_and(|known| known.source == FactSource::Probed)
}

fn dialect(worker: &Worker, says: &Says) -> (Arc<dyn dialect::Dialect>, FactSource) {
    let written = worker.spec.dialect;
    let capabilities = says.capabilities.as_deref();
    if matches!(written, Dialect::Auto | Dialect::Tailroute)
        && let Some(found) = capabilities.and_then(dialect::Tailroute::of)
    {
        return (Arc::new(found), FactSource::Probed);
    }
    if written == Dialect::Auto
        && let Some(found) = says.info.as_deref().and_then(dialect::SglangTlru::of)
    {
        return (Arc::new(found), FactSource::Probed);
    }
    let source = match written {
        Dialect::Auto => FactSource::Assumed,
        _ => FactSource::Configured,
    };
    (dialect::before_probe(&worker.spec), source)
}

fn take_policy(routing: &Routing, worker: &Worker, now: Millis, says: &Says) {
    let (policy, source, name) = policy(worker, says);
    let before = worker.facts.known(Fact::CachePolicy);
    let is_lost = source == FactSource::Assumed
        && before
            .as_ref()
            .is_some_and(|known| known.source == FactSource::Probed);
    if is_lost {
        return;
    }
    match worker.facts.learn(now, Fact::CachePolicy, source, name.clone()) {
        FactChange::Same => return,
        FactChange::Changed => info!(
            worker = worker.name(),
            before = before.map(|known| known.value),
            policy = name,
            "the worker's cache policy changed"
        ),
        FactChange::First => log_policy(worker, source, &name),
    }
    routing
        .knowledge
        .set_order(worker.id, cache_policy::order(policy));
}

/// Logs a cache policy that is assumed.
fn log_policy(worker: &Worker, source: FactSource, name: &str) {
    match source {
        FactSource::Assumed => info!(
            worker = worker.name(),
            "cache policy not reported; assuming lru (workers[].cache_policy)"
        ),
        FactSource::Probed if name.ends_with(UNSUPPORTED) => warn!(
            worker = worker.name(),
            policy = name,
            "unsupported cache policy; assuming lru"
        ),
        _ => {}
    }
}

/// Suffix of a reported policy that mirrors do not simulate.
const UNSUPPORTED: &str = " (taken as lru)";

fn policy(worker: &Worker, says: &Says) -> (CachePolicy, FactSource, String) {
    if worker.spec.cache_policy != CachePolicy::Auto {
        let policy = worker.spec.cache_policy;
        return (policy, FactSource::Configured, named(policy));
    }
    for document in [&says.capabilities, &says.info].into_iter().flatten() {
        match ReportedPolicy::of(document) {
            ReportedPolicy::Known(policy) => return (policy, FactSource::Probed, named(policy)),
            ReportedPolicy::Unknown(name) => {
                return (
                    CachePolicy::Lru,
                    FactSource::Probed,
                    format!("{name}{UNSUPPORTED}"),
                );
            }
            ReportedPolicy::Nothing => {}
        }
    }
    (CachePolicy::Lru, FactSource::Assumed, named(CachePolicy::Lru))
}

fn named(policy: CachePolicy) -> String {
    serde_json::to_value(policy)
        .ok()
        .and_then(|value| Some(value.as_str()?.to_owned()))
        .unwrap_or_default()
}
