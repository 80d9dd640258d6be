//! The engine's HTTP surface: vLLM's routes, the `tailroute` dialect, and the controls under `/sim`.

pub(crate) mod accept;
mod api;
mod body;
mod completions;
mod control;
mod error;
mod fast;
mod form;
mod messages;
mod metrics;
mod request;
mod responses;
mod shape;
mod stream;
mod whole;

use std::sync::Arc;

use ::http::{HeaderMap, Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;

use self::api::{Api, Family};
use self::body::{Body, CutOff, full, json_response, text_response};
use self::error::ApiError;
use crate::config::{Dialect, EventStyle};
use crate::rank::{Ranks, Shared};
use crate::stats::Captured;

/// Answers one request. `Err` cuts the connection.
pub(crate) async fn handle(ranks: Ranks, request: Request<Incoming>) -> Result<Response<Body>, CutOff> {
    let family = Family::of(request.uri().path());
    let Some(shared) = rank_of(&ranks, request.headers()) else {
        return Ok(ApiError::bad_request("There is no such data-parallel rank.").response(family));
    };
    match route(&ranks, shared, request).await {
        Ok(response) => Ok(response),
        Err(Failure::Api(error)) => Ok(error.response(family)),
        Err(Failure::Cut) => {
            shared.count_injected();
            Err(CutOff)
        }
    }
}

/// Returns the rank that the request's header names (vLLM's and SGLang's are understood), or the least loaded one.
fn rank_of<'a>(ranks: &'a Ranks, headers: &HeaderMap) -> Option<&'a Arc<Shared>> {
    let named = ["x-data-parallel-rank", "x-override-routed-dp-rank"];
    match named.into_iter().find_map(|name| headers.get(name)) {
        Some(rank) => ranks.get(rank.to_str().ok()?.parse::<usize>().ok()?),
        None if ranks.len() == 1 => ranks.first(),
        None => ranks.iter().min_by_key(|rank| rank.load()),
    }
}

/// The reason why a request gets no regular response.
pub(crate) enum Failure {
    Api(ApiError),
    /// A fault cuts the connection.
    Cut,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

async fn route(
    ranks: &Ranks,
    shared: &Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Failure> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if !path.starts_with("/sim/") && shared.fault().hang {
        // Hang until the client disconnects.
        std::future::pending::<()>().await;
    }
    let tailroute = shared.config.dialect == Dialect::Tailroute;
    if let (&Method::POST, Some(api)) = (&method, Api::of(&path)) {
        return completions::answer(shared, request, api).await;
    }
    if let Some(rest) = path.strip_prefix("/v1/responses/") {
        return Ok(responses::stored(shared, &method, rest)?);
    }
    match (&method, path.as_str()) {
        (&Method::POST, "/v1/messages/count_tokens") => Ok(messages::count_tokens(shared, request).await?),
        (&Method::POST, "/tokenize") => Ok(completions::tokenize(shared, request).await?),
        (&Method::GET, "/v1/models") => Ok(models(shared)),
        (&Method::GET, "/health") if shared.fault().refuse_health => {
            Err(ApiError::unavailable("the engine is not healthy").into())
        }
        (&Method::GET, "/health") => Ok(full(StatusCode::OK, "text/plain", Bytes::new())),
        (&Method::GET, "/metrics") => Ok(text_response(metrics::render(shared))),
        (&Method::GET, "/kv_event_sources") if style(shared) != Some(EventStyle::Sglang) => {
            Ok(control::kv_event_sources(ranks))
        }
        (&Method::GET, "/server_info") if style(shared) == Some(EventStyle::Sglang) => {
            Ok(control::server_info(ranks))
        }
        (&Method::GET, "/v1/tailroute") if tailroute => Ok(control::capabilities(shared)),
        (&Method::POST, "/v1/tailroute/hints") if tailroute => Ok(control::hints(shared, request).await?),
        (&Method::PUT, "/v1/tailroute/objective") if tailroute => {
            Ok(control::objective(shared, request).await?)
        }
        (&Method::GET, "/sim/stats") => Ok(control::stats(shared)),
        (&Method::GET, "/sim/fault") => Ok(json_response(StatusCode::OK, &shared.fault())),
        (&Method::PUT, "/sim/fault") => Ok(control::set_fault(ranks, request).await?),
        (&Method::DELETE, "/sim/fault") => Ok(control::heal(ranks)),
        (&Method::PUT, "/sim/pace") => Ok(control::set_pace(ranks, request).await?),
        (_, known) if is_known(known, tailroute) => Err(ApiError::method_not_allowed(&method, known).into()),
        (_, unknown) => Err(ApiError::no_such_path(unknown).into()),
    }
}

fn style(shared: &Shared) -> Option<EventStyle> {
    shared.config.kv_events.as_ref().map(|events| events.style)
}

fn is_known(path: &str, tailroute: bool) -> bool {
    match path {
        "/v1/messages/count_tokens" | "/tokenize" | "/v1/models" | "/health" | "/metrics" => true,
        "/kv_event_sources" | "/sim/stats" | "/sim/fault" | "/sim/pace" => true,
        "/v1/tailroute" | "/v1/tailroute/hints" | "/v1/tailroute/objective" => tailroute,
        _ => Api::of(path).is_some(),
    }
}

async fn read_body(shared: &Shared, request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let limit = shared.config.max_body_bytes;
    let (head, body) = request.into_parts();
    if hyper::body::Body::size_hint(&body).lower() > limit as u64 {
        return Err(ApiError::too_large(limit));
    }
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(ApiError::too_large(limit));
        }
        Err(error) => {
            return Err(ApiError::bad_request(format!(
                "the body could not be read: {error}"
            )));
        }
    };
    if shared.config.capture {
        let (method, uri, headers) = (head.method, head.uri, head.headers);
        shared.capture(Captured {
            method,
            uri,
            headers,
            body: body.clone(),
        });
    }
    Ok(body)
}

fn models(shared: &Shared) -> Response<Body> {
    let model = &shared.config.model;
    let card = json!({
        "id": model, "object": "model", "created": crate::rank::unix_seconds() as u64, "owned_by": "sim-engine",
        "root": model, "parent": null, "max_model_len": shared.config.max_model_len,
    });
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [card] }))
}
