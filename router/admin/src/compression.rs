//! Gzip for clients that accept it: pages of the console and JSON. Streams are sent as they come.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tower_http::CompressionLevel;
use tower_http::compression::{CompressionLayer, Predicate};

use super::problem::Problem;

/// Least size of a response that is worth compressing.
const MIN_BYTES: u64 = 512;

/// The status of an operation, which stays the response's.
#[derive(Clone, Copy, Debug)]
struct OperationStatus(StatusCode);

/// Compresses the responses of these routes for clients that accept it.
pub(super) fn compressed(routes: Router) -> Router {
    // Documents are compressed anew for each request, on a machine whose processors serve turns.
    let gzip = CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(Compressible);
    routes
        .layer(map_response(note_status))
        .layer(gzip)
        .layer(map_response(finish))
}

async fn note_status(mut response: Response) -> Response {
    let status = OperationStatus(response.status());
    response.extensions_mut().insert(status);
    response
}

/// Restores the status of the operation, which the layer replaces by 406 for a client that accepts no form of the
/// response, though the operation was performed. Compresses on a blocking thread, because the thread that sends the
/// response answers probes as well.
async fn finish(mut response: Response) -> Response {
    if let Some(OperationStatus(status)) = response.extensions_mut().remove() {
        *response.status_mut() = status;
    }
    if !response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let (head, body) = response.into_parts();
    let reading = spawn_blocking(move || Handle::current().block_on(to_bytes(body, usize::MAX)));
    match reading.await {
        Ok(Ok(bytes)) => Response::from_parts(head, Body::from(bytes)),
        _ => Problem::internal("the response cannot be compressed").into_response(),
    }
}

/// Selects bodies that are complete and long enough. A strong entity tag names the bytes of one form of a response
/// (RFC 9110, section 8.8.1), and `If-Match` compares no other tags: such a response keeps its form.
#[derive(Clone, Copy, Debug)]
struct Compressible;

impl Predicate for Compressible {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        let length = response.body().size_hint().exact();
        length.is_some_and(|length| length >= MIN_BYTES) && !has_strong_tag(response.headers())
    }
}

fn has_strong_tag(headers: &HeaderMap) -> bool {
    let tag = headers.get(header::ETAG);
    tag.is_some_and(|tag| !tag.as_bytes().starts_with(b"W/"))
}

#[cfg(test)]
mod tests;
