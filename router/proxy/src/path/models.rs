//! `/v1/models`: the workers' model lists, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::context::RequestTimer;
use crate::Proxy;
use fleet::Worker;
use protocol::error::ApiError;
use protocol::names;
use tailroute_http::body::{self, Body};

/// Longest part of a model's name repeated in an error.
const SHOWN_CHARS: usize = 128;
const SHOWN_MODELS: usize = 16;

/// Lists the models of all ready workers, merged and sorted by name.
pub fn list(proxy: &Arc<Proxy>) -> Response<Body> {
    let models: Vec<Value> = merged(proxy).into_values().collect();
    answer(proxy, &json!({ "object": "list", "data": models }))
}

/// Describes one model. Fails with 404 if no ready worker serves it.
pub fn one(proxy: &Arc<Proxy>, name: &str) -> Result<Response<Body>, ApiError> {
    let card = merged(proxy).remove(name).ok_or_else(|| unknown(proxy, name))?;
    Ok(answer(proxy, &card))
}

/// Checks a model's name. Fails with 400 if it is invalid; with 404 and the known models if no worker can serve it.
pub fn check(proxy: &Proxy, name: &str) -> Result<(), ApiError> {
    if !names::is_fit(name) {
        return Err(ApiError::UnfitName("model"));
    }
    if proxy.state.fleet.surely_lacks(name) {
        Err(unknown(proxy, name))
    } else {
        Ok(())
    }
}

fn unknown(proxy: &Proxy, name: &str) -> ApiError {
    let short = |name: &str| name.chars().take(SHOWN_CHARS).collect::<String>();
    let ready = proxy.state.fleet.workers();
    let ready = ready.iter().filter(|worker| worker.is_ready());
    let models: BTreeSet<String> = ready.flat_map(|worker| named(worker)).collect();
    let mut known: Vec<String> = models
        .iter()
        .take(SHOWN_MODELS)
        .map(|name| format!("`{}`", short(name)))
        .collect();
    if models.len() > SHOWN_MODELS {
        known.push(format!("{} more (GET /v1/models)", models.len() - SHOWN_MODELS));
    }
    ApiError::UnknownModel {
        model: short(name),
        known: known.join(", "),
    }
}

fn named(worker: &Worker) -> Vec<String> {
    if !worker.spec.models.is_empty() {
        return worker.spec.models.clone();
    }
    let listed = worker.models();
    let listed = listed.iter().flat_map(|listed| listed.iter());
    listed
        .filter_map(|card| card["id"].as_str().map(str::to_owned))
        .collect()
}

fn merged(proxy: &Proxy) -> BTreeMap<String, Value> {
    let mut models = BTreeMap::new();
    for worker in proxy
        .state
        .fleet
        .workers()
        .iter()
        .filter(|worker| worker.is_ready())
    {
        let listed = worker.models();
        let listed = listed.as_deref().map(Vec::as_slice).unwrap_or_default();
        for name in &worker.spec.models {
            let card = listed.iter().find(|card| card["id"] == **name).cloned();
            let made = || json!({ "id": name, "object": "model", "created": 0, "owned_by": "tailroute" });
            add(&mut models, name, card.unwrap_or_else(made));
        }
        if worker.spec.models.is_empty() {
            for card in listed {
                if let Some(name) = card["id"].as_str() {
                    add(&mut models, name, card.clone());
                }
            }
        }
    }
    models
}

/// Merges a worker's model card. Where workers differ on the context length, the shortest holds for a request that may
/// go to any of them. For other fields the first card wins.
fn add(models: &mut BTreeMap<String, Value>, name: &str, card: Value) {
    let Some(known) = models.get_mut(name) else {
        models.insert(name.to_owned(), card);
        return;
    };
    let length = |card: &Value| card["max_model_len"].as_u64();
    let least = length(known).into_iter().chain(length(&card)).min();
    if let (Some(known), Value::Object(card)) = (known.as_object_mut(), card) {
        for (key, value) in card {
            known.entry(key).or_insert(value);
        }
        if let Some(least) = least {
            known.insert("max_model_len".to_owned(), least.into());
        }
    }
}

fn answer(proxy: &Proxy, said: &Value) -> Response<Body> {
    let timer = RequestTimer {
        endpoint: "models",
        started: proxy.state.clock.now(),
    };
    let mut response = Response::new(body::full(said.to_string()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    timer.record(proxy, "ok");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_say_of_one_model_is_put_together() {
        let mut models = BTreeMap::new();
        add(
            &mut models,
            "m",
            json!({ "id": "m", "max_model_len": 8192, "owned_by": "vllm" }),
        );
        add(
            &mut models,
            "m",
            json!({ "id": "m", "max_model_len": 4096, "owned_by": "sglang", "root": "/m" }),
        );
        add(&mut models, "m", json!({ "id": "m" }));
        add(&mut models, "m", json!(5));
        assert_eq!(
            models["m"],
            json!({ "id": "m", "max_model_len": 4096, "owned_by": "vllm", "root": "/m" })
        );
    }
}
