//! `/v1/models`: what the workers list, merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{self, Body};

/// Every model that some ready worker lists, once, ordered by name.
pub fn list(app: &Arc<App>) -> Response<Body> {
    let mut models = BTreeMap::new();
    for worker in app.fleet.workers().iter().filter(|worker| worker.is_ready()) {
        for name in &worker.spec.models {
            models
                .entry(name.clone())
                .or_insert_with(|| json!({ "id": name, "object": "model", "owned_by": "tailroute" }));
        }
        if worker.spec.models.is_empty() {
            for card in worker.models().iter().flat_map(|models| models.iter()) {
                let name = card["id"].as_str().unwrap_or_default().to_owned();
                models.entry(name).or_insert_with(|| card.clone());
            }
        }
    }
    let models: Vec<Value> = models.into_values().collect();
    let started = app.clock.now();
    let mut response = Response::new(body::full(
        json!({ "object": "list", "data": models }).to_string(),
    ));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    app.metrics
        .request("models", "ok", (app.clock.now() - started).0 / 1e3);
    response
}
