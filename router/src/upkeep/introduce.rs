//! Meeting a worker, for the first time or again: which models does it serve, how is it told things, what does it cost?

use std::sync::Arc;

use config::Dialect;
use http::Method;
use serde_json::Value;
use tracing::{debug, info};

use crate::app::App;
use crate::control;
use crate::fleet::{Worker, dialect};

/// Learns a worker's models and its dialect, and tells it the objective if that has a way.
pub(super) async fn introduce(app: &App, worker: &Arc<Worker>) {
    let models = match control::call(app, worker, Method::GET, "/v1/models", None).await {
        Ok(answer) => models(&answer),
        Err(error) => {
            debug!(worker = worker.name(), %error, "it does not list its models");
            None
        }
    };
    let dialect = dialect(app, worker).await;
    info!(
        worker = worker.name(),
        dialect = dialect.name(),
        models = models.as_ref().map(Vec::len),
        "introduced"
    );
    worker.learned(dialect, models);
    if app.config.learning.costs {
        super::learner::introduce(app, worker.id);
    }
    if app.config.hints.enabled && worker.takes_objective() {
        worker.hints.took(None);
        worker.hints.objective(app.objective_for(worker));
        super::hints::send_objective(app, worker).await;
    }
}

/// Asks a worker what it understands.
async fn dialect(app: &App, worker: &Worker) -> Arc<dyn dialect::Dialect> {
    let written = worker.spec.dialect;
    if !matches!(written, Dialect::Auto | Dialect::Tailroute) {
        return dialect::before_probe(written);
    }
    match control::call(app, worker, Method::GET, "/v1/tailroute", None).await {
        Ok(answer) => {
            if let Some(found) = dialect::Tailroute::of(&answer) {
                return Arc::new(found);
            }
        }
        Err(error) => debug!(worker = worker.name(), %error, "no capability document"),
    }
    if written == Dialect::Auto
        && let Ok(answer) = control::call(app, worker, Method::GET, "/server_info", None).await
        && let Some(found) = dialect::SglangTlru::of(&answer)
    {
        return Arc::new(found);
    }
    dialect::before_probe(written)
}

fn models(answer: &[u8]) -> Option<Vec<Value>> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    match answer.get_mut("data").map(Value::take) {
        Some(Value::Array(models)) => Some(models),
        _ => None,
    }
}
