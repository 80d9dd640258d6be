//! Probes a new or restarted worker for its models, hint dialect, eviction order and cost. An engine in the middle of a
//! long prompt may not answer in time. Until it does, it gets no hints, and the queries are repeated with growing
//! pauses ([`Pause`]).

use std::sync::Arc;

use bytes::Bytes;
use config::{CachePolicy, Dialect};
use http::Method;
use serde_json::Value;
use tracing::{debug, info, warn};

use fleet::cache_policy::{self, ReportedPolicy};
use fleet::dialect::sglang;
use fleet::{Worker, dialect};
use protocol::names;
use proxy::Proxy;
use state::control;

/// Finds a worker's models and dialect, and sends it the objective. Returns whether every query got an answer.
pub(super) async fn introduce(proxy: &Proxy, worker: &Arc<Worker>) -> bool {
    let (models, mut answered) =
        match control::call(&proxy.state, worker, Method::GET, "/v1/models", None).await {
            Ok(answer) => (models(&answer), true),
            Err(error) => {
                debug!(worker = worker.name(), %error, "models not listed");
                (None, error.is_refusal())
            }
        };
    let says = ask(proxy, worker).await;
    answered &= !says.unanswered;
    // An unanswered query keeps the previous value and is repeated.
    if says.told_info {
        worker.set_shares_inputs(says.info.as_deref().is_some_and(sglang::caches_inputs));
    }
    let (dialect, policy) = (dialect(worker, &says), policy(worker, &says));
    info!(
        worker = worker.name(),
        dialect = dialect.name(),
        cache_policy = ?policy,
        models = models.as_ref().map(Vec::len),
        answered,
        "introduced"
    );
    proxy
        .state
        .knowledge
        .set_order(worker.id, cache_policy::order(policy));
    answered &= super::capacity::learn(&proxy.state, worker, [&says.capabilities, &says.info]).await;
    if let Some(models) = &models {
        super::template::learn(&proxy.state, worker, models).await;
    }
    worker.learned(dialect, models);
    if proxy.state.config.learning.costs {
        super::learner::introduce(&proxy.state, worker.id);
    }
    if proxy.state.config.hints.enabled && worker.takes_objective() {
        worker.hints.took(None);
        worker.hints.objective(proxy.state.objective_for(worker));
        super::hints::send_objective(proxy, worker).await;
    }
    answered
}

#[derive(Default)]
struct Says {
    capabilities: Option<Bytes>,
    info: Option<Bytes>,
    /// Whether the server info was requested and answered, even if negatively.
    told_info: bool,
    /// Whether any query got no answer at all.
    unanswered: bool,
}

/// Queries a worker for what its configuration leaves open.
async fn ask(proxy: &Proxy, worker: &Worker) -> Says {
    let spec = &worker.spec;
    let policy_is_open = spec.cache_policy == CachePolicy::Auto;
    let mut says = Says::default();
    if policy_is_open || matches!(spec.dialect, Dialect::Auto | Dialect::Tailroute) {
        says.capabilities = fetch(proxy, worker, "/v1/tailroute", &mut says.unanswered).await;
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
        let mut unanswered = false;
        says.info = fetch(proxy, worker, "/server_info", &mut unanswered).await;
        says.told_info = !unanswered;
        says.unanswered |= unanswered;
    }
    says
}

async fn fetch(proxy: &Proxy, worker: &Worker, path: &str, unanswered: &mut bool) -> Option<Bytes> {
    match control::call(&proxy.state, worker, Method::GET, path, None).await {
        Ok(answer) => Some(answer),
        Err(error) => {
            debug!(worker = worker.name(), path, %error, "no answer to an introspection request");
            *unanswered |= !error.is_refusal();
            None
        }
    }
}

fn dialect(worker: &Worker, says: &Says) -> Arc<dyn dialect::Dialect> {
    let written = worker.spec.dialect;
    let capabilities = says.capabilities.as_deref();
    if matches!(written, Dialect::Auto | Dialect::Tailroute)
        && let Some(found) = capabilities.and_then(dialect::Tailroute::of)
    {
        return Arc::new(found);
    }
    if written == Dialect::Auto
        && let Some(found) = says.info.as_deref().and_then(dialect::SglangTlru::of)
    {
        return Arc::new(found);
    }
    dialect::before_probe(&worker.spec)
}

fn policy(worker: &Worker, says: &Says) -> CachePolicy {
    if worker.spec.cache_policy != CachePolicy::Auto {
        return worker.spec.cache_policy;
    }
    for document in [&says.capabilities, &says.info].into_iter().flatten() {
        match ReportedPolicy::of(document) {
            ReportedPolicy::Known(policy) => return policy,
            ReportedPolicy::Unknown(name) => {
                warn!(
                    worker = worker.name(),
                    policy = name,
                    "unsupported cache policy; assuming lru"
                );
                return CachePolicy::Lru;
            }
            ReportedPolicy::Nothing => {}
        }
    }
    info!(
        worker = worker.name(),
        "cache policy not reported; assuming lru (workers[].cache_policy)"
    );
    CachePolicy::Lru
}

/// Pause between attempts to query a worker that is up: 1, 2, 4 … 64 probes.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Probes until the next attempt; `None` after a complete answer.
    left: Option<u32>,
    next: u32,
}

impl Pause {
    const LONGEST: u32 = 64;

    /// Records an attempt: the first one after an outage, or `again`.
    pub(super) fn asked(&mut self, answered: bool, again: bool) {
        let pause = if again { self.next } else { 1 };
        self.left = (!answered).then_some(pause);
        self.next = (pause * 2).min(Self::LONGEST);
    }

    /// Records a successful probe. Returns whether to query again.
    pub(super) fn is_over(&mut self) -> bool {
        let Some(left) = &mut self.left else {
            return false;
        };
        *left = left.saturating_sub(1);
        *left == 0
    }
}

/// Models kept per worker: more than an engine has adapters.
const MOST_MODELS: usize = 1024;

/// Returns the models that a worker lists, up to the limit, with names that fit.
fn models(answer: &[u8]) -> Option<Vec<Value>> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    let Some(Value::Array(mut models)) = answer.get_mut("data").map(Value::take) else {
        return None;
    };
    models.retain(|card| card["id"].as_str().is_some_and(names::is_fit));
    models.truncate(MOST_MODELS);
    models.shrink_to_fit();
    Some(models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_lists_is_bounded_in_number_and_names() {
        let listed = |ids: &[String]| {
            let cards: Vec<Value> = ids.iter().map(|id| serde_json::json!({ "id": id })).collect();
            let answer = serde_json::json!({ "data": cards }).to_string();
            models(answer.as_bytes()).unwrap().len()
        };
        let many: Vec<String> = (0..MOST_MODELS + 1).map(|at| format!("m{at}")).collect();
        assert_eq!(listed(&many), MOST_MODELS);
        assert_eq!(listed(&["m".repeat(300), "a\nb".to_owned(), "fit".to_owned()]), 1);
        assert_eq!(models(br#"{"data":[{"id":5},7,{}]}"#).unwrap().len(), 0);
        assert!(models(br#"{"data":7}"#).is_none() && models(b"no").is_none());
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end_with_an_answer() {
        let mut pause = Pause::default();
        assert!(!pause.is_over(), "nothing was asked");
        pause.asked(false, false);
        let mut waited = Vec::new();
        for _ in 0..8 {
            waited.push((1..).find(|_| pause.is_over()).unwrap());
            pause.asked(false, true);
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 64]);
        pause.asked(false, false);
        assert!(pause.is_over(), "it came back");
        pause.asked(true, true);
        assert!((0..100).all(|_| !pause.is_over()));
    }
}
