//! The client's side: requests as hyper hands them over, and responses as they are read.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tailroute_http::body::{Body, BodyPiece};
use tokio::io::{AsyncWriteExt, duplex};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::within;

/// Size in bytes of the connection's buffer, which holds any head.
const BUFFER_BYTES: usize = 64 << 10;

/// The body of a request, sent in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Upload {
    /// Body with a declared length; `None` for one that is sent in chunks.
    whole: Option<String>,
    /// Chunks, and the milliseconds before each.
    chunks: Vec<(u64, String)>,
    /// Whether the body ends.
    is_whole: bool,
}

impl Upload {
    /// A body of known length, which is sent at once.
    pub(crate) fn whole(body: &str) -> Self {
        Self {
            whole: Some(body.to_owned()),
            ..Self::default()
        }
    }

    /// A body in chunks, each after so many milliseconds, without an end.
    pub(crate) fn chunks(chunks: &[(u64, &str)]) -> Self {
        Self {
            chunks: chunks
                .iter()
                .map(|(ms, chunk)| (*ms, (*chunk).to_owned()))
                .collect(),
            ..Self::default()
        }
    }

    pub(crate) fn end(self) -> Self {
        Self {
            is_whole: true,
            ..self
        }
    }
}

/// Returns a request as hyper hands it over. Its body is sent while it is read.
pub(super) async fn incoming(
    method: Method,
    path: &str,
    fields: &[(&str, &str)],
    body: Upload,
) -> Request<Incoming> {
    let framing = match &body.whole {
        Some(whole) => format!("content-length: {}\r\n\r\n{whole}", whole.len()),
        None => "transfer-encoding: chunked\r\n\r\n".to_owned(),
    };
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: router\r\n{fields}{framing}");
    let (mut client, server) = duplex(BUFFER_BYTES);
    let (hand_over, handed) = oneshot::channel();
    let hand_over = Mutex::new(Some(hand_over));
    let service = service_fn(move |request: Request<Incoming>| {
        let _ = hand_over.lock().take().unwrap().send(request);
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    tokio::spawn(async move {
        client.write_all(head.as_bytes()).await.unwrap();
        for (ms, chunk) in body.chunks {
            sleep(Duration::from_millis(ms)).await;
            let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
            let _ = client.write_all(chunk.as_bytes()).await;
        }
        if body.is_whole {
            let _ = client.write_all(b"0\r\n\r\n").await;
        }
        // The client stays connected.
        std::future::pending::<()>().await;
    });
    within(handed).await.unwrap()
}

/// A response as its client has read it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Pieces of the body, and the milliseconds from the request to each.
    pub(crate) pieces: Vec<(u64, String)>,
    /// Milliseconds from the request to the head.
    pub(crate) head_ms: u64,
    /// Milliseconds from the request to the end of the body.
    pub(crate) end_ms: u64,
    /// Why the body was cut; `None` if it is complete.
    pub(crate) error: Option<String>,
}

impl Delivered {
    /// Reads the response to a request of this time.
    pub(crate) async fn read(response: Response<Body>, began: Instant) -> Self {
        let since = || began.elapsed().as_millis() as u64;
        let head_ms = since();
        let (head, mut body) = response.into_parts();
        let (mut pieces, mut error) = (Vec::new(), None);
        while let Some(piece) = within(next_piece(&mut body)).await {
            match piece {
                Ok(data) => pieces.push((since(), String::from_utf8_lossy(&data).into_owned())),
                Err(cause) => {
                    error = Some(cause);
                    break;
                }
            }
        }
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            pieces,
            head_ms,
            end_ms: since(),
            error,
        }
    }

    /// Returns the whole body.
    pub(crate) fn text(&self) -> String {
        self.pieces.iter().map(|(_, piece)| piece.as_str()).collect()
    }

    /// Returns a header field; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the name of the worker that answered; empty if the router did.
    pub(crate) fn worker(&self) -> &str {
        self.field("x-tailroute-worker")
    }

    /// Returns the code of the router's own error; empty if a worker answered.
    pub(crate) fn code(&self) -> &str {
        self.field("x-tailroute-error")
    }
}

/// Reads the next data of a body as the server does, and skips trailers; `None` at its end.
pub(crate) async fn next_piece(body: &mut Body) -> Option<Result<Bytes, String>> {
    let mut out = Vec::new();
    loop {
        let piece = poll_fn(|cx| {
            if body.is_end_stream() {
                return Poll::Ready(BodyPiece::Frame(None));
            }
            body.poll_piece(cx, &mut out)
        });
        return match piece.await {
            BodyPiece::Added => Some(Ok(out.into())),
            BodyPiece::Frame(None) => None,
            BodyPiece::Frame(Some(Err(error))) => Some(Err(error.to_string())),
            BodyPiece::Frame(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Some(Ok(data)),
                Err(_) => continue,
            },
        };
    }
}

/// Reads the next data of a body by its frames; `None` at its end.
pub(crate) async fn next_frame(body: &mut Body) -> Option<Result<Bytes, String>> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error.to_string())),
        }
    }
}
