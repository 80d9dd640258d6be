//! The generating APIs: admission, then a streamed or an unstreamed reply.

use std::sync::Arc;

use ::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::api::Api;
use super::body::{self, Body, json_response};
use super::error::ApiError;
use super::request::{self, Fields};
use super::shape::{Shape, Turn, reply_id};
use super::{Failure, fast, messages, responses, stream, whole};
use crate::rank::{Shared, Ticket};

pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    api: Api,
) -> Result<Response<Body>, Failure> {
    let number = shared.receive();
    let fault = shared.fault();
    let struck = fault.hits(number);
    let headers = request.headers().clone();
    let bytes = super::read_body(shared, request).await?;
    if struck && fault.reset_before_first_byte {
        return Err(Failure::Cut);
    }
    if let Some(status) = fault.status.filter(|_| struck) {
        shared.count_injected();
        return Err(ApiError::injected(status).into());
    }
    if shared.config.fast {
        return Ok(fast::answer(shared, &headers, number, api, &bytes)?);
    }
    let (fields, turn) = fields(shared, api, &bytes)?;
    let (submission, reply) = fields.submission(&shared.config, &headers)?;
    drop(bytes);
    let ticket = shared.submit(submission).map_err(|_| ApiError::overloaded())?;
    let shape = Shape {
        id: reply_id(shared, &headers, &turn, api, number),
        api,
        created: crate::rank::unix_seconds() as u64,
        shared: Arc::clone(shared),
        reply,
        turn,
    };
    let breaks = fault.breaks().filter(|_| struck);
    if shape.reply.stream {
        return Ok(stream::respond(shape, ticket, breaks));
    }
    let answer = wait(&shape, ticket).await?;
    match breaks {
        None => Ok(answer),
        Some((_, how)) => {
            shared.count_injected();
            Ok(body::half(answer, how).await)
        }
    }
}

fn fields(shared: &Shared, api: Api, body: &[u8]) -> Result<(Fields, Turn), ApiError> {
    match api {
        Api::Chat | Api::Completions => Ok((request::fields(&shared.config, body)?, Turn::default())),
        Api::Messages => Ok((messages::fields(&shared.config, body)?, Turn::default())),
        Api::Responses => responses::fields(shared, body),
    }
}

/// `POST /tokenize`, for prompts and messages.
pub(super) async fn tokenize(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let body = super::read_body(shared, request).await?;
    let tokens = request::fields(&shared.config, &body)?.prompt_tokens()?;
    let answer = json!({
        "count": tokens.len(), "max_model_len": shared.config.max_model_len, "tokens": tokens, "token_strs": null,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

async fn wait(shape: &Shape, ticket: Ticket) -> Result<Response<Body>, Failure> {
    let Ticket { mut progress, hold } = ticket;
    let last = match progress.wait_for(|progress| progress.done).await {
        Ok(last) => *last,
        Err(_) => return Err(Failure::Cut),
    };
    drop(hold);
    if last.lost {
        return Err(Failure::Cut);
    }
    Ok(json_response(StatusCode::OK, &whole::reply(shape, &last)))
}
