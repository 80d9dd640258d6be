//! One turn over HTTP: sent at its time, read as it streams.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Limited};
use reqwest::{Response, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::answer::{Answer, Fault};
use super::target::Target;

const SESSION: HeaderName = HeaderName::from_static("x-session-id");

/// Longest error body, or list of models, that is read.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Why a turn has no answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// No connection, or one that broke before the answer began.
    Connection,
    /// No complete answer in time.
    Timeout,
    /// A status that is not 200.
    Status(u16),
    /// The stream held something that is no chunk.
    Malformed,
    /// The stream held an error.
    Reported,
    /// The stream broke off.
    Reset,
    /// The stream ended without `[DONE]`, or without a reason to finish, or without content.
    Unfinished,
}

impl Failure {
    /// Name in reports.
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

    /// Whether an answer began and did not come to its end.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Reset | Self::Unfinished)
    }
}

/// What came back for a turn.
#[derive(Debug)]
pub struct Exchange {
    /// What was received, complete or not. Its times count from the intended send time.
    pub answer: Answer,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// In whose words.
    pub detail: Option<String>,
    /// From the intended send time to the end.
    pub took: Duration,
}

/// A pool of kept-alive connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    timeout: Duration,
}

impl Client {
    /// A client that gives a turn `timeout` in all.
    ///
    /// # Errors
    /// If this machine cannot make one.
    pub fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout.min(Duration::from_secs(10)))
            // Well under any server's patience with a silent connection: a request that is sent just as the server
            // closes it would count as the server's failure.
            .pool_idle_timeout(Duration::from_secs(2))
            .build()?;
        Ok(Self { http, timeout })
    }

    /// Sends `body` now and reads the answer to its end. `due` is the intended send time.
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
        url: &Url,
        session: Option<&HeaderValue>,
        body: Bytes,
        due: Instant,
        answer: &mut Answer,
        detail: &mut Option<String>,
    ) -> Result<(), Failure> {
        let mut request = self.http.post(url.clone()).body(body);
        request = request.header(CONTENT_TYPE, "application/json");
        request = request.header(ACCEPT, "text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        let sent = request.send().await;
        let mut response = sent.map_err(|error| {
            *detail = Some(chain(&error.without_url()));
            Failure::Connection
        })?;
        let status = response.status().as_u16();
        if status != 200 {
            // Read what it says, so that the connection can be used again.
            let said = whole(response).await.ok();
            *detail = said.map(|said| String::from_utf8_lossy(&said).chars().take(300).collect());
            return Err(Failure::Status(status));
        }
        loop {
            match response.chunk().await {
                Ok(Some(bytes)) => answer.push(&bytes, due.elapsed()),
                Ok(None) => return Ok(()),
                Err(error) => {
                    *detail = Some(chain(&error.without_url()));
                    return Err(Failure::Reset);
                }
            }
        }
    }

    /// The first model that `target` serves.
    ///
    /// # Errors
    /// If it cannot be asked, or names none.
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
            let response = self.http.get(url).send().await?;
            anyhow::ensure!(response.status().is_success(), "answered {}", response.status());
            let body = whole(response).await.map_err(|error| anyhow::anyhow!(error))?;
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

/// The body, as far as the limit allows.
async fn whole(response: Response) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let body = Limited::new(reqwest::Body::from(response), MAX_BODY_BYTES);
    Ok(body.collect().await?.to_bytes())
}

/// An error and what caused it, in one line.
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
