//! One turn over HTTP: sends it at its time and reads the streamed response.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;
use tokio::time::Instant;

use super::answer::{Answer, Fault};
use super::target::Target;

const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// Longest error body or model list that is read.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Why a turn has no complete response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The connection could not be established, or broke before the response began.
    Connection,
    /// The response was not complete within the timeout.
    Timeout,
    /// The status was not 200.
    Status(u16),
    /// The stream contained an event that is not a chunk.
    Malformed,
    /// The stream contained an error.
    Reported,
    /// The connection broke mid-stream.
    Reset,
    /// The stream ended without `[DONE]`, a finish reason or content.
    Unfinished,
}

impl Failure {
    /// Returns the name used in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Connection => "connection".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Status(status) => format!("http_{status}"),
            Self::Malformed => "malformed".to_owned(),
            Self::Reported => "reported".to_owned(),
            Self::Reset => "reset".to_owned(),
            Self::Unfinished => "unfinished".to_owned(),
        }
    }

    /// Returns whether a response began but did not complete.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Reset | Self::Unfinished)
    }
}

/// The outcome of a turn.
#[derive(Debug)]
pub struct Exchange {
    /// The response as received, complete or not. Its times count from the intended send time.
    pub answer: Answer,
    /// The failure, if any.
    pub failure: Option<Failure>,
    /// The error text of the failure.
    pub detail: Option<String>,
    /// From the intended send time to the end.
    pub took: Duration,
}

/// An HTTP client with kept-alive connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    timeout: Duration,
}

impl Client {
    /// Returns a client with `timeout` per turn.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout.min(Duration::from_secs(10))));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Well below the idle timeout of servers: a request sent just as the server closes the connection would
            // count as the server's failure.
            .pool_idle_timeout(Duration::from_secs(2))
            .build(connector);
        Self { http, timeout }
    }

    /// Sends `body` now and reads the whole response. `due` is the intended send time.
    pub async fn turn(
        &self,
        url: &Uri,
        session: Option<&HeaderValue>,
        body: Bytes,
        due: Instant,
    ) -> Exchange {
        let mut answer = Answer::default();
        let mut detail = None;
        let exchange = self.exchange(url, session, body, due, &mut answer, &mut detail);
        let result = tokio::time::timeout(self.timeout, exchange).await;
        let failure = match result {
            Err(_) => Some(Failure::Timeout),
            Ok(Err(failure)) => Some(failure),
            Ok(Ok(())) => match &answer.fault {
                Some(Fault::NotAChunk) => Some(Failure::Malformed),
                Some(Fault::Reported(_)) => Some(Failure::Reported),
                None => (!answer.is_complete()).then_some(Failure::Unfinished),
            },
        };
        if let Some(Fault::Reported(message)) = &answer.fault {
            detail = Some(message.clone());
        }
        Exchange {
            answer,
            failure,
            detail,
            took: due.elapsed(),
        }
    }

    async fn exchange(
        &self,
        url: &Uri,
        session: Option<&HeaderValue>,
        body: Bytes,
        due: Instant,
        answer: &mut Answer,
        detail: &mut Option<String>,
    ) -> Result<(), Failure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(session) = session {
            headers.insert(SESSION, session.clone());
        }
        let response = self.http.request(request).await.map_err(|error| {
            *detail = Some(chain(&error));
            Failure::Connection
        })?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status != 200 {
            // The body is read so that the connection can be reused.
            let said = Limited::new(body, MAX_BODY_BYTES).collect().await;
            *detail = said.ok().map(|said| {
                String::from_utf8_lossy(&said.to_bytes())
                    .chars()
                    .take(300)
                    .collect()
            });
            return Err(Failure::Status(status));
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                *detail = Some(chain(&error));
                Failure::Reset
            })?;
            if let Some(bytes) = frame.data_ref() {
                answer.push(bytes, due.elapsed());
            }
        }
        Ok(())
    }

    /// Returns the first model that `target` lists.
    ///
    /// # Errors
    /// If the target cannot be reached, or lists no model.
    pub async fn first_model(&self, target: &Target) -> anyhow::Result<String> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let ask = async {
            let url = target.urls("/v1/models")?.into_iter().next();
            let url = url.ok_or_else(|| anyhow::anyhow!("has no url"))?;
            let response = self.http.get(url).await?;
            anyhow::ensure!(response.status().is_success(), "answered {}", response.status());
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
            let list: List = serde_json::from_slice(&body)?;
            list.data
                .into_iter()
                .next()
                .map(|model| model.id)
                .ok_or_else(|| anyhow::anyhow!("names no model"))
        };
        tokio::time::timeout(self.timeout.min(Duration::from_secs(30)), ask).await?
    }
}

/// Formats an error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
