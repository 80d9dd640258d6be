//! A client that speaks proper HTTP/1.1, one connection per request, so that a test can hang up whenever it likes.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wait::within;

/// Where chat completions are.
pub const CHAT: &str = "/v1/chat/completions";

/// Header fields of a request.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// An answer whose body is still to come. Dropping it hangs up.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    body: Incoming,
    _connection: Connection,
}

/// Hangs up when it is dropped.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer that is all there.
#[derive(Debug)]
pub struct Whole {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, as far as it came.
    pub body: Bytes,
    /// Whether it ended as HTTP says that it should.
    pub clean: bool,
}

impl Answer {
    /// A header field's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The worker that the router says answered.
    ///
    /// # Panics
    /// If it does not say.
    #[must_use]
    pub fn worker(&self) -> String {
        self.header("x-tailroute-worker")
            .expect("a worker is named")
            .to_owned()
    }

    /// The next piece of the body; `None` at its end, an error where it broke off.
    pub async fn chunk(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            match within(self.body.frame()).await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads until `count` more bytes are there.
    ///
    /// # Panics
    /// If the body ends before.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend_from_slice(&self.chunk().await.expect("more to come").unwrap());
        }
        all
    }

    /// Reads the rest of the body, and the trailers after it.
    ///
    /// # Panics
    /// If the body breaks off.
    pub async fn trailers(&mut self) -> HeaderMap {
        while let Some(frame) = within(self.body.frame()).await {
            if let Ok(trailers) = frame.expect("a whole body").into_trailers() {
                return trailers;
            }
        }
        HeaderMap::new()
    }

    /// All the rest.
    pub async fn whole(mut self) -> Whole {
        let (mut body, mut clean) = (Vec::new(), true);
        while let Some(chunk) = self.chunk().await {
            match chunk {
                Ok(data) => body.extend_from_slice(&data),
                Err(_) => {
                    clean = false;
                    break;
                }
            }
        }
        Whole {
            status: self.status,
            headers: std::mem::take(&mut self.headers),
            body: body.into(),
            clean,
        }
    }
}

impl Whole {
    /// A header field's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The worker that the router says answered.
    ///
    /// # Panics
    /// If it does not say.
    #[must_use]
    pub fn worker(&self) -> String {
        self.header("x-tailroute-worker")
            .expect("a worker is named")
            .to_owned()
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// The code of an error, after checking that the answer is one that OpenAI's clients can read.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn error_code(&self) -> String {
        assert!(self.clean, "the answer is whole");
        assert_eq!(self.header("content-type"), Some("application/json"));
        code_of(&self.json())
    }

    /// The payloads of an event stream, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        events(&self.body)
    }
}

/// The code in an error of OpenAI's shape.
///
/// # Panics
/// If it has another shape.
#[must_use]
pub fn code_of(answer: &Value) -> String {
    let error = &answer["error"];
    assert!(
        error["message"].as_str().is_some_and(|text| !text.is_empty()),
        "{answer}"
    );
    assert!(
        error["type"].is_string() && (error["param"].is_null() || error["param"].is_string()),
        "{answer}"
    );
    error["code"].as_str().expect("a code").to_owned()
}

/// The payloads of an event stream; what is no JSON, as `[DONE]`, comes as a string.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn events(stream: &[u8]) -> Vec<Value> {
    std::str::from_utf8(stream)
        .unwrap()
        .split_terminator("\n\n")
        .map(|event| {
            let data = event.strip_prefix("data: ").expect("a data line");
            serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()))
        })
        .collect()
}

/// Sends a request and waits for the head of its answer. Dropping the future hangs up.
///
/// # Errors
/// What went wrong, if no answer came.
pub async fn open(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: Fields<'_>,
    body: impl Into<Bytes>,
) -> Result<Answer, String> {
    let socket = TcpStream::connect(address)
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    let connection = Connection(tokio::spawn(async move {
        // The sender or the body tells the test what went wrong.
        let _ = connection.await;
    }));
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "router.test");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let response = within(sender.send_request(request))
        .await
        .map_err(|error| error.to_string())?;
    let (head, body) = response.into_parts();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body,
        _connection: connection,
    })
}

/// Sends a request and reads the whole answer.
///
/// # Panics
/// If there is none.
pub async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: Fields<'_>,
    body: impl Into<Bytes>,
) -> Whole {
    open(address, method, path, headers, body)
        .await
        .expect("an answer")
        .whole()
        .await
}

/// Calls the admin port, as somebody on the same machine: by its address. What is sent is JSON.
///
/// # Panics
/// If there is no answer.
pub async fn admin(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: Fields<'_>,
    body: Option<&Value>,
) -> Whole {
    let host = address.to_string();
    let mut fields = headers.to_vec();
    if !headers.iter().any(|(name, _)| *name == "host") {
        fields.push(("host", &host));
    }
    if body.is_some() {
        fields.push(("content-type", "application/json"));
    }
    let body = body.map_or(String::new(), Value::to_string);
    call(address, method, path, &fields, body).await
}

/// One HTTP/2 connection, begun without asking (h2c by prior knowledge). Dropping it hangs up.
#[derive(Debug)]
pub struct H2 {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    _connection: Arc<Connection>,
}

impl H2 {
    /// Connects.
    ///
    /// # Panics
    /// If the other side does not speak HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        // Or a reset waits for the other side to acknowledge what was sent before.
        socket.set_nodelay(true).unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
                .await
                .unwrap();
        let connection = Connection(tokio::spawn(async move {
            // The sender or a body tells the test what went wrong.
            let _ = connection.await;
        }));
        Self {
            sender,
            _connection: Arc::new(connection),
        }
    }

    /// The same connection once more: it stays until both are dropped.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            _connection: Arc::clone(&self._connection),
        }
    }

    /// Sends a request on a stream of its own. Dropping what is returned resets that stream, not the connection.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> http::Response<Incoming> {
        let request = Request::post(format!("http://router.test{path}"))
            .body(Full::new(body.into()))
            .unwrap();
        within(self.sender.clone().send_request(request)).await.unwrap()
    }
}
