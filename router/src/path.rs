//! The request's way, top to bottom: admit → parse → fingerprint → choose → forward → tap → learn → hint.
//!
//! Each stage takes the last one's output. Nothing before `forward` waits for anything but the client's own bytes, and
//! nothing after it holds the stream up.

pub mod admit;
pub mod choose;
pub mod fingerprint;
pub mod forward;
pub mod headers;
pub mod json;
pub mod learn;
pub mod mend;
pub mod models;
pub mod objective;
pub mod parse;
pub mod reply;
pub mod session;
pub mod splice;
pub mod tap;
pub mod watch;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tracing::warn;

use self::admit::{Endpoint, Route};
use self::choose::Turn;
use self::forward::{Attempt, Failure};
use crate::app::{App, Place};
use crate::body::Body;
use crate::error::ApiError;

/// Answers one request.
pub async fn handle(app: Arc<App>, request: Request<Incoming>) -> Response<Body> {
    let started = app.clock.now();
    let endpoint = match admit::route(&app, &request) {
        Ok(route) => route.endpoint(),
        Err(_) => "none",
    };
    let answered = tokio::select! {
        biased;
        answered = answer(&app, request) => answered,
        // Nothing of an answer is there yet, and no time is left to wait for it.
        () = app.when_cut_off() => Err(ApiError::Draining),
    };
    match answered {
        Ok(response) => response,
        Err(error) => {
            let outcome = if error.status().is_client_error() {
                "client_error"
            } else {
                "router_error"
            };
            app.metrics
                .request(endpoint, outcome, (app.clock.now() - started).0 / 1e3);
            error.response()
        }
    }
}

async fn answer(app: &Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let route = admit::route(app, &request)?;
    let place = app.place().ok_or(ApiError::Overloaded)?;
    match route {
        Route::Models => Ok(models::list(app)),
        Route::Turn(endpoint) => {
            let (head, body) = request.into_parts();
            let body = admit::read_body(app, &head, body).await?;
            turn(app, endpoint, &head, body, place).await
        }
        Route::Other => forward::pass(app, request, place).await,
    }
}

/// A turn of a conversation: tried until a worker takes it, as long as none can have begun it.
async fn turn(
    app: &Arc<App>,
    endpoint: Endpoint,
    head: &http::request::Parts,
    body: Bytes,
    place: Place,
) -> Result<Response<Body>, ApiError> {
    let arrived = app.clock.now();
    let mut turn = Turn::read(app, endpoint, &head.headers, &body, arrived)?;
    let mut place = Some(place);
    let mut tried = Vec::new();
    loop {
        let choice = choose::choose(app, &turn, &tried)?;
        let worker = Arc::clone(&choice.worker);
        let last = tried.len() >= app.config.limits.retries as usize || !choice.has_alternative();
        let attempt = Attempt {
            app,
            head,
            body: body.clone(),
            turn: &mut turn,
            choice,
            place: &mut place,
        };
        match forward::forward(attempt, last).await {
            Ok(response) => return Ok(response),
            Err(Failure::NotStarted(error)) if !last => {
                warn!(worker = worker.name(), %error, "not reached, trying another worker");
                app.metrics.retry(worker.name());
                tried.push(worker.id);
            }
            Err(Failure::NotStarted(error) | Failure::MayHaveStarted(error)) => return Err(error),
        }
    }
}
