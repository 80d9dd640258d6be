//! The `tailroute` dialect, the controls under `/sim`, and the listing of cache event sources.

use ::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{Body, json_response};
use super::error::ApiError;
use super::read_body;
use crate::config::CachePolicy;
use crate::fault::Fault;
use crate::hints::{Hint, HintOutcome, Objective};
use crate::rank::{Ranks, Shared};

const MAX_HINTS: usize = 4096;

/// `GET /v1/tailroute`: the engine's capabilities.
pub(super) fn capabilities(shared: &Shared) -> Response<Body> {
    let config = &shared.config;
    let mut answer = json!({
        "dialect": "tailroute", "version": 1, "engine": "sim-engine", "model": config.model,
        "hints": ["trim", "ended", "protect"], "objective": true, "objective_ttl": true,
        "evict_first_header": "x-tailroute-evict-first-tokens", "max_hints": MAX_HINTS,
        "block_size": config.block_size, "capacity_tokens": config.capacity_tokens(),
        "cache_policy": config.cache_policy.as_str(),
    });
    if !config.tells_capacity
        && let Some(said) = answer.as_object_mut()
    {
        said.remove("capacity_tokens");
    }
    json_response(StatusCode::OK, &answer)
}

#[derive(Deserialize)]
struct Hints {
    hints: Vec<Value>,
}

/// `POST /v1/tailroute/hints`: applies the hints independently and returns the number of each outcome.
pub(super) async fn hints(shared: &Shared, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let body = read_body(shared, request).await?;
    let Hints { hints } = parse(&body)?;
    if hints.len() > MAX_HINTS {
        return Err(ApiError::bad_request(format!(
            "At most {MAX_HINTS} hints per request."
        )));
    }
    let (mut applied, mut pending, mut expired, mut stale, mut unknown, mut rejected) = (0, 0, 0, 0, 0, 0);
    for hint in hints {
        let Ok(hint) = serde_json::from_value::<Hint>(hint) else {
            rejected += 1;
            continue;
        };
        let outcome =
            shared.with(|scheduler, now| scheduler.memory.hint(now, &hint, shared.config.time_scale));
        let count = match outcome {
            HintOutcome::Applied => &mut applied,
            HintOutcome::Pending => &mut pending,
            HintOutcome::Expired => &mut expired,
            HintOutcome::Stale => &mut stale,
            HintOutcome::Unknown => &mut unknown,
        };
        *count += 1;
    }
    shared.with(|scheduler, _| scheduler.memory.counters.hints_rejected += rejected);
    let answer = json!({
        "applied": applied, "pending": pending, "expired": expired, "stale": stale, "unknown": unknown,
        "rejected": rejected,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// `PUT /v1/tailroute/objective`.
pub(super) async fn objective(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(shared, request).await?;
    let objective: Objective = parse(&body)?;
    let sane = |value: f64| value.is_finite() && value >= 0.0;
    if !sane(objective.xi_tokens) || !sane(objective.next_prompt_tokens) {
        return Err(ApiError::bad_request(
            "`xi_tokens` and `next_prompt_tokens` must be finite and at least 0.",
        ));
    }
    if objective.ttl_ms.is_some_and(|ttl| !ttl.is_finite() || ttl <= 0.0) {
        return Err(ApiError::bad_request("`ttl_ms` must be finite and above 0."));
    }
    let (taken, now) = shared.with(|scheduler, now| {
        let taken = scheduler
            .memory
            .set_objective(now, objective, shared.config.time_scale);
        (taken, scheduler.memory.objective())
    });
    Ok(json_response(
        StatusCode::OK,
        &json!({ "applied": taken, "objective": now }),
    ))
}

/// `GET /kv_event_sources`: publishers by data-parallel rank.
pub(super) fn kv_event_sources(ranks: &Ranks) -> Response<Body> {
    let sources = ranks.iter().filter_map(|rank| rank.kv_source.as_ref());
    let by_rank: serde_json::Map<String, Value> = sources
        .map(|source| {
            let told = json!({
                "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": source.endpoint,
                "replay_endpoint": source.replay_endpoint, "topic": source.topic,
            });
            (source.rank.to_string(), told)
        })
        .collect();
    json_response(StatusCode::OK, &by_rank)
}

/// `GET /server_info`: SGLang's eviction policy and cache event endpoints.
pub(super) fn server_info(ranks: &Ranks) -> Response<Body> {
    let events = ranks.first().and_then(|first| {
        let source = first.kv_source.as_ref()?;
        let (_, port) = source.endpoint.rsplit_once(':')?;
        Some(json!({
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": port.parse::<u16>().ok()?,
            "topic": source.topic, "block_size": first.config.block_size, "dp_size": ranks.len(),
        }))
    });
    let policy = ranks
        .first()
        .map(|first| first.config.cache_policy)
        .unwrap_or_default();
    let (name, numbers) = match policy {
        CachePolicy::Plain(_) => (policy.as_str(), Value::Null),
        CachePolicy::TLru {
            xi_tokens,
            next_prompt_tokens,
        } => {
            let numbers = json!({ "threshold": xi_tokens, "next_prompt_estimate": next_prompt_tokens });
            ("tlru", numbers)
        }
    };
    let answer = json!({
        "dp_size": ranks.len(), "kv_events": events, "radix_eviction_policy": name,
        "radix_eviction_policy_config": numbers,
    });
    json_response(StatusCode::OK, &answer)
}

/// `GET /sim/stats`; with capture enabled, it includes the latest request.
pub(super) fn stats(shared: &Shared) -> Response<Body> {
    let mut answer = serde_json::to_value(shared.stats()).unwrap_or_default();
    if let Some(last) = shared.captured().last() {
        let headers: Vec<(&str, String)> = last
            .headers
            .iter()
            .map(|(name, value)| {
                (
                    name.as_str(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect();
        answer["last_request"] = json!({
            "method": last.method.as_str(), "uri": last.uri.to_string(), "headers": headers,
            "body": String::from_utf8_lossy(&last.body), "body_bytes": last.body.len(),
            "body_xxh3": format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&last.body)),
        });
    }
    json_response(StatusCode::OK, &answer)
}

/// `PUT /sim/fault`.
pub(super) async fn set_fault(ranks: &Ranks, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let Some(first) = ranks.first() else {
        return Ok(json_response(StatusCode::OK, &Value::Null));
    };
    let body = read_body(first, request).await?;
    let fault: Fault = parse(&body)?;
    fault.check().map_err(ApiError::bad_request)?;
    ranks.iter().for_each(|rank| rank.set_fault(fault.clone()));
    Ok(json_response(StatusCode::OK, &fault))
}

/// `DELETE /sim/fault`.
pub(super) fn heal(ranks: &Ranks) -> Response<Body> {
    ranks.iter().for_each(|rank| rank.set_fault(Fault::default()));
    json_response(StatusCode::OK, &Fault::default())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pace {
    gap_ms: f64,
}

/// `PUT /sim/pace`: wall milliseconds between the tokens of a fast engine's streams; 0 sends them at once.
pub(super) async fn set_pace(ranks: &Ranks, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let Some(first) = ranks.first() else {
        return Ok(json_response(StatusCode::OK, &Value::Null));
    };
    let pace: Pace = parse(&read_body(first, request).await?)?;
    let gap = std::time::Duration::try_from_secs_f64(pace.gap_ms / 1e3)
        .map_err(|_| ApiError::bad_request("`gap_ms` must be finite and at least 0."))?;
    ranks.iter().for_each(|rank| rank.set_pace(gap));
    Ok(json_response(StatusCode::OK, &json!({ "gap_ms": pace.gap_ms })))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("Invalid JSON body: {error}")))
}
