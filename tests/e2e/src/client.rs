//! An HTTP/1.1 client with one connection per request, so that a test can disconnect at any time.

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

/// Path of chat completions.
pub const CHAT: &str = "/v1/chat/completions";

/// Header fields of a request.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// A response whose body has not been read. Dropping it closes the connection.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    _connection: Connection,
}

/// Closes the connection when it is dropped.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A complete response.
#[derive(Debug)]
pub struct Whole {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Body, as far as it was received.
    pub body: Bytes,
    /// Whether the body ended properly.
    pub clean: bool,
}

impl Answer {
    /// Returns a header field's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the worker named by the router.
    ///
    /// # Panics
    /// If the header is missing.
    #[must_use]
    pub fn worker(&self) -> String {
        self.header("x-tailroute-worker")
            .expect("a worker is named")
            .to_owned()
    }

    /// Returns the next piece of the body; `None` at the end, an error if the body breaks off.
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

    /// Reads `count` more bytes.
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

    /// Reads the rest of the body and returns the trailers.
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

    /// Reads the rest of the response.
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
    /// Returns a header field's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the worker named by the router.
    ///
    /// # Panics
    /// If the header is missing.
    #[must_use]
    pub fn worker(&self) -> String {
        self.header("x-tailroute-worker")
            .expect("a worker is named")
            .to_owned()
    }

    /// Returns the body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// Checks that the response is an error in OpenAI's format and returns its code.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn error_code(&self) -> String {
        assert!(self.clean, "the answer is whole");
        assert_eq!(self.header("content-type"), Some("application/json"));
        code_of(&self.json())
    }

    /// Returns the payloads of an event stream, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        events(&self.body)
    }
}

/// Returns the code of an error in OpenAI's format.
///
/// # Panics
/// If it has another format.
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

/// Parses the payloads of an event stream. Those that are not JSON, such as `[DONE]`, become strings.
///
/// # Panics
/// If it is not an event stream.
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

/// Sends a request and waits for the head of its response. Dropping the future closes the connection. Fails with the
/// reason, as text, if there is no response.
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
    #[expect(clippy::disallowed_methods, reason = "the client of a test")]
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    let connection = Connection(tokio::spawn(async move {
        // Errors are reported by the sender or the body too.
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

/// Sends a request and reads the complete response.
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

/// Calls the admin port by its address, as a local client. The body is JSON.
///
/// # Panics
/// If there is no response.
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

/// An HTTP/2 connection with prior knowledge (h2c). Dropping it closes the connection.
#[derive(Debug)]
pub struct H2 {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    _connection: Arc<Connection>,
}

impl H2 {
    /// Connects.
    ///
    /// # Panics
    /// If the peer does not speak HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        // With delays, a reset would wait for the acknowledgement of earlier data.
        socket.set_nodelay(true).unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
                .await
                .unwrap();
        let connection = Connection(tokio::spawn(async move {
            // Errors are reported by the sender or a body too.
            let _ = connection.await;
        }));
        Self {
            sender,
            _connection: Arc::new(connection),
        }
    }

    /// Returns another handle to the connection, which stays open until all handles are dropped.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            _connection: Arc::clone(&self._connection),
        }
    }

    /// Sends a request on a new stream. Dropping the response resets the stream, not the connection.
    ///
    /// # Panics
    /// If there is no response.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> http::Response<Incoming> {
        let request = Request::post(format!("http://router.test{path}"))
            .body(Full::new(body.into()))
            .unwrap();
        within(self.sender.clone().send_request(request)).await.unwrap()
    }
}
