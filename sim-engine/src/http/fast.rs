//! Fast mode: an engine with minimal cost, for measuring a proxy in front of it. Only the fields that the reply depends
//! on are parsed, a prompt token is taken to be four bytes, and responses are not stored. A streamed reply has one
//! event, and one write, per token, as with real engines: all at once, or at the pace of `PUT /sim/pace` in wall time.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::{HeaderMap, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use serde::Deserialize;
use tokio::time::{Instant, Sleep, sleep_until};

use super::api::Api;
use super::body::{Body, CutOff, json_response};
use super::error::ApiError;
use super::request::{Finish, Reply};
use super::shape::{Shape, Turn, reply_id};
use super::stream::{Writer, event_stream};
use super::whole;
use crate::rank::Shared;
use crate::scheduler::Progress;

#[derive(Deserialize)]
struct Asked {
    stream: Option<bool>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
}

pub(super) fn answer(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    number: u64,
    api: Api,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let asked: Asked = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("Invalid JSON body: {error}")))?;
    let generated = asked
        .max_completion_tokens
        .or(asked.max_tokens)
        .or(asked.max_output_tokens)
        .unwrap_or(shared.config.default_output_tokens)
        .max(1);
    let turn = Turn::default();
    let shape = Shape {
        id: reply_id(shared, headers, &turn, api, number),
        api,
        created: crate::rank::unix_seconds() as u64,
        shared: Arc::clone(shared),
        reply: Reply {
            stream: asked.stream.unwrap_or(false),
            include_usage: true,
            finish: Finish::Stop,
            cut: None,
            script: None,
            seed: 0,
            prompt_tokens: body.len() as u64 / 4,
            tells_tiers: false,
        },
        turn,
    };
    if shape.reply.stream {
        return Ok(event_stream(Paced::new(shape, generated).boxed_unsync()));
    }
    let progress = Progress {
        generated,
        done: true,
        ..Progress::default()
    };
    Ok(json_response(StatusCode::OK, &whole::reply(&shape, &progress)))
}

struct Paced {
    writer: Writer,
    said: u32,
    tokens: u32,
    gap: Duration,
    /// Time of the next token; `None` without a pace.
    due: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    fn new(shape: Shape, tokens: u32) -> Self {
        let gap = shape.shared.pace();
        Self {
            writer: Writer::new(shape),
            said: 0,
            tokens,
            gap,
            due: (!gap.is_zero()).then(|| Box::pin(sleep_until(Instant::now()))),
        }
    }
}

impl hyper::body::Body for Paced {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let paced = self.get_mut();
        if paced.said == paced.tokens {
            return Poll::Ready(None);
        }
        if let Some(due) = &mut paced.due {
            ready!(due.as_mut().poll(cx));
            // Counted from the deadline, not from the actual write, so that the pace holds on a busy machine too.
            let next = due.deadline() + paced.gap;
            due.as_mut().reset(next);
        }
        paced.said += 1;
        let events = paced.writer.events(&Progress {
            generated: paced.said,
            done: paced.said == paced.tokens,
            ..Progress::default()
        });
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(events)))))
    }
}
