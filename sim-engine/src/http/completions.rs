//! `/v1/chat/completions` and `/v1/completions`: admission, then a streamed or an unstreamed reply.

use std::sync::Arc;

use ::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::body::{self, Body, json_response};
use super::error::ApiError;
use super::shape::{Shape, plain, reply_id, whole_answer};
use super::{Failure, fast, request, stream};
use crate::rank::{Shared, Ticket};
use crate::text;

pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    chat: bool,
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
        return Ok(fast::answer(shared, &headers, number, chat, &bytes)?);
    }
    let fields = request::fields(&shared.config, &bytes)?;
    let id = reply_id(&headers, chat, number);
    let (submission, reply) = fields.submission(&shared.config, &headers)?;
    drop(bytes);
    let ticket = shared.submit(submission).map_err(|_| ApiError::overloaded())?;
    let shape = Shape {
        id,
        chat,
        created: crate::rank::unix_seconds() as u64,
        shared: Arc::clone(shared),
        reply,
    };
    let breaks = fault.breaks().filter(|_| struck);
    if shape.reply.stream {
        return Ok(stream::respond(shape, ticket, breaks));
    }
    let answer = whole(&shape, ticket).await?;
    match breaks {
        None => Ok(answer),
        Some((_, how)) => {
            shared.count_injected();
            Ok(body::half(answer, how).await)
        }
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

async fn whole(shape: &Shape, ticket: Ticket) -> Result<Response<Body>, Failure> {
    let Ticket { mut progress, hold } = ticket;
    let last = match progress.wait_for(|progress| progress.done).await {
        Ok(last) => *last,
        Err(_) => return Err(Failure::Cut),
    };
    drop(hold);
    if last.lost {
        return Err(Failure::Cut);
    }
    let config = &shape.shared.config;
    let said = match &shape.reply.script {
        Some(script) => script.message(last.generated),
        None => {
            let mut said = text::words(shape.reply.seed, 0..last.generated, config.multibyte);
            said.truncate(shape.reply.cut.unwrap_or(usize::MAX));
            plain(said)
        }
    };
    let mut answer = whole_answer(shape, said, shape.usage(&last));
    if let Some(metrics) = shape.metrics(&last) {
        answer["metrics"] = metrics;
    }
    if let Some(tiers) = shape.tiers(&last) {
        answer["sglext"] = tiers;
    }
    Ok(json_response(StatusCode::OK, &answer))
}
