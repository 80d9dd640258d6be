//! One turn over HTTP: sends it at its time and reads the streamed response.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Limited};
use policy::text::printable;
use reqwest::{Response, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::answer::{Answer, Fault};
use super::target::DriveTarget;
use crate::bounded::{self, Limits, fetch, words};

const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// Longest error body or model list that is read.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Longest stream that is read.
const MAX_STREAM_BYTES: usize = 64 << 20;
/// Longest error text that is kept.
const DETAIL_CHARS: usize = 300;

/// The reason why a turn has no complete response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TurnFailure {
    /// The connection could not be established, or broke before the response began.
    Connection,
    /// The response was not complete within the timeout.
    Timeout,
    /// The status was not 200.
    Status(u16),
    /// The stream contained an event that is not a chunk, or was too long.
    Malformed,
    /// The stream contained an error.
    Reported,
    /// The connection broke mid-stream.
    Reset,
    /// The stream ended without `[DONE]`, a finish reason or content.
    Unfinished,
}

impl TurnFailure {
    /// Returns the name used in reports.
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
    pub failure: Option<TurnFailure>,
    /// The error text of the failure.
    pub detail: Option<String>,
    /// Time from the intended send time to the end.
    pub took: Duration,
}

/// An HTTP client with kept-alive connections.
#[derive(Clone, Debug)]
pub struct ChatClient {
    http: reqwest::Client,
    timeout: Duration,
}

impl ChatClient {
    /// Returns a client with `timeout` per turn. Fails if the HTTP client cannot be built.
    pub fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let http = bounded::client()
            // Below any server's idle timeout: a request sent as a server closes would count as its failure.
            .pool_idle_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, timeout })
    }

    /// Sends `body` now and reads the whole response. `due` is the intended send time.
    pub async fn turn(
        &self,
        url: &Url,
        session: Option<&HeaderValue>,
        body: Bytes,
        due: Instant,
    ) -> Exchange {
        let mut answer = Answer::default();
        let mut detail = None;
        let exchange = self.exchange(url, session, body, due, &mut answer, &mut detail);
        let result = tokio::time::timeout(self.timeout, exchange).await;
        let failure = match result {
            Err(_) => Some(TurnFailure::Timeout),
            Ok(Err(failure)) => Some(failure),
            Ok(Ok(())) => match &answer.fault {
                Some(Fault::NotAChunk) => Some(TurnFailure::Malformed),
                Some(Fault::Reported(_)) => Some(TurnFailure::Reported),
                None => (!answer.is_complete()).then_some(TurnFailure::Unfinished),
            },
        };
        if let Some(Fault::Reported(message)) = &answer.fault {
            detail = Some(message.clone());
        }
        Exchange {
            answer,
            failure,
            detail: detail.map(|detail| printable(&detail).chars().take(DETAIL_CHARS).collect()),
            took: due.elapsed(),
        }
    }

    async fn exchange(
        &self,
        url: &Url,
        session: Option<&HeaderValue>,
        body: Bytes,
        due: Instant,
        answer: &mut Answer,
        detail: &mut Option<String>,
    ) -> Result<(), TurnFailure> {
        let mut request = self.http.post(url.clone()).body(body);
        request = request.header(CONTENT_TYPE, "application/json");
        request = request.header(ACCEPT, "text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        let sent = request.send().await;
        let mut response = sent.map_err(|error| {
            *detail = Some(words(&error));
            TurnFailure::Connection
        })?;
        let status = response.status().as_u16();
        if status != 200 {
            // The body is read so that the connection can be reused.
            let said = whole(response).await.ok();
            *detail = said.map(|said| String::from_utf8_lossy(&said).into_owned());
            return Err(TurnFailure::Status(status));
        }
        let mut read = 0;
        loop {
            match response.chunk().await {
                Ok(Some(bytes)) => {
                    read += bytes.len();
                    if read > MAX_STREAM_BYTES {
                        *detail = Some(format!("a response of more than {MAX_STREAM_BYTES} bytes"));
                        return Err(TurnFailure::Malformed);
                    }
                    answer.push(&bytes, due.elapsed());
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    *detail = Some(words(&error));
                    return Err(TurnFailure::Reset);
                }
            }
        }
    }

    /// Returns the first model that `target` lists. Fails if the target cannot be reached, or lists no model.
    pub async fn first_model(&self, target: &DriveTarget) -> anyhow::Result<String> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let url = target.urls("/v1/models")?.into_iter().next();
        let url = url.ok_or_else(|| anyhow::anyhow!("has no url"))?;
        let limits = Limits {
            time: self.timeout.min(Duration::from_secs(30)),
            bytes: MAX_BODY_BYTES,
        };
        let answer = fetch(self.http.get(url), limits).await?;
        anyhow::ensure!(answer.status.is_success(), "answered {}", answer.status);
        let list: List = serde_json::from_slice(&answer.body)?;
        let mut models = list.data.into_iter();
        let first = models.next().map(|model| model.id);
        first.ok_or_else(|| anyhow::anyhow!("names no model"))
    }
}

async fn whole(response: Response) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let body = Limited::new(reqwest::Body::from(response), MAX_BODY_BYTES);
    Ok(body.collect().await?.to_bytes())
}
