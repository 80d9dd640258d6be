//! `/v1/models`: the merged model lists of the workers; and what a request for a model changes in the known lists.
//!
//! A name that no list has may have been loaded since the lists were read. Such a request makes the router read them
//! again ([`refreshed`]), and waits for that as long as a probe may take, before it is answered 404. A worker's own 404
//! for a model contradicts its list: the request is tried where the model is known to be, before its client sees
//! anything ([`recheck_elsewhere`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use policy::ids::WorkerId;
use serde_json::{Value, json};

use super::context::RequestTimer;
use fleet::Worker;
use fleet::eligibility::Eligibility;
use fleet::facts::{Listed, Query};
use protocol::error::ApiError;
use protocol::names;
use state::Routing;
use tailroute_http::body::{self, Body};

/// Longest part of a model's name repeated in an error.
const SHOWN_CHARS: usize = 128;
const SHOWN_MODELS: usize = 16;

/// Lists the models of all ready workers, merged and sorted by name.
pub fn list(routing: &Routing, timer: RequestTimer) -> Response<Body> {
    let models: Vec<Value> = merged(routing).into_values().collect();
    answer(routing, timer, &json!({ "object": "list", "data": models }))
}

/// Describes one model. Fails with 404 if no ready worker serves it.
pub async fn one(routing: &Routing, timer: RequestTimer, name: &str) -> Result<Response<Body>, ApiError> {
    let mut card = merged(routing).remove(name);
    if card.is_none() && refreshed(routing).await {
        card = merged(routing).remove(name);
    }
    let card = card.ok_or_else(|| unknown(routing, name))?;
    Ok(answer(routing, timer, &card))
}

/// Checks a model's name against the known lists. An empty name is accepted as no name. Fails with 400 if the name is
/// invalid, and with 404 and the known models if no worker can serve it.
pub fn check(routing: &Routing, name: &str) -> Result<(), ApiError> {
    if !names::is_fit(name) {
        return Err(ApiError::UnfitName("model"));
    }
    let unlisted = routing.config.routing.unlisted_models;
    if !name.is_empty() && routing.fleet.lacks(name, unlisted) {
        Err(unknown(routing, name))
    } else {
        Ok(())
    }
}

/// Checks a model's name like [`check`], and reads the lists again before it fails with 404.
pub async fn check_again(routing: &Routing, name: &str) -> Result<(), ApiError> {
    match check(routing, name) {
        Err(ApiError::UnknownModel { .. }) if refreshed(routing).await => check(routing, name),
        checked => checked,
    }
}

/// Reads the lists of all healthy workers again, and waits for them, though not longer than for a probe. Requests that
/// wait at the same time share one reading, and readings are limited in number
/// ([`EngineFacts::doubt`](fleet::facts::EngineFacts)). Returns whether any was requested.
pub async fn refreshed(routing: &Routing) -> bool {
    let now = routing.clock.now();
    let mut doubted: Vec<(Arc<Worker>, u64)> = Vec::new();
    for worker in routing.fleet.workers().iter().filter(|worker| worker.is_well()) {
        let question = worker.facts.doubt(now);
        doubted.extend(question.map(|number| (Arc::clone(worker), number)));
    }
    let all_read = async {
        for (worker, number) in &doubted {
            worker.facts.wait_for_answer(Query::Models, *number).await;
        }
    };
    // A list that comes later is known to later requests.
    let _ = tokio::time::timeout(routing.config.health.timeout, all_read).await;
    !doubted.is_empty()
}

/// Acts on a worker's 404 for a request that names a model: the list of a worker that was thought to have it is read
/// again. Returns whether an untried worker `among` those that may get the request serves the model. `says_so`: the
/// answer itself says that the worker lacks the model. Only then does it count as a denial, since an engine may miss
/// other things.
pub async fn recheck_elsewhere(
    routing: &Routing,
    worker: &Worker,
    (model, says_so): (&str, bool),
    tried: &[WorkerId],
    among: impl Fn(&Worker) -> bool,
) -> bool {
    let now = routing.clock.now();
    if model.is_empty() || !(says_so || worker.serves(model).is_known()) {
        return false;
    }
    let other = || {
        let workers = routing.fleet.workers();
        let among = workers.iter().filter(|other| among(other));
        let unlisted = routing.config.routing.unlisted_models;
        let eligible = Eligibility::of(among.clone(), model, unlisted);
        let mut untried = among.filter(|other| other.is_ready() && !tried.contains(&other.id));
        untried.any(|other| eligible.admits(other))
    };
    if says_so {
        worker.facts.refute(now, model);
    }
    worker.facts.doubt(now);
    other() || (says_so && refreshed(routing).await && other())
}

fn unknown(routing: &Routing, name: &str) -> ApiError {
    let short = |name: &str| name.chars().take(SHOWN_CHARS).collect::<String>();
    let ready = routing.fleet.workers();
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
    listed.map_or_else(Vec::new, |listed| listed.names().to_vec())
}

fn merged(routing: &Routing) -> BTreeMap<String, Value> {
    let mut models = BTreeMap::new();
    for worker in routing.fleet.workers().iter().filter(|worker| worker.is_ready()) {
        let listed = worker.models();
        let listed = listed.as_deref().map(Listed::cards).unwrap_or_default();
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

fn answer(routing: &Routing, timer: RequestTimer, said: &Value) -> Response<Body> {
    let mut response = Response::new(body::full(said.to_string()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    timer.record(routing, "ok");
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::routes::Route;

    use super::*;
    use crate::testing::Seat;

    #[tokio::test(start_paused = true)]
    async fn the_list_is_timed_from_its_requests_head() {
        let seat = Seat::with(|_| {});
        let routing = &seat.proxy.state.routing;
        let timer = RequestTimer {
            endpoint: Route::Models.endpoint(),
            started: routing.clock.now(),
        };
        tokio::time::advance(Duration::from_secs(2)).await;
        list(routing, timer);
        let took = "tailroute_request_duration_seconds_sum";
        assert_eq!(seat.metric(took, &["endpoint=models"]), 2.0);
    }

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
