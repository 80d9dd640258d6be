//! A streamed completion through the URL that clients use.

use http::StatusCode;
use reqwest::header::{HeaderMap, SERVER, VIA};
use reqwest::{RequestBuilder, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::exchange::{PROMPTED, get};
use super::facts::Stream;
use crate::bounded::{FetchError, next, open};
use crate::drive::answer::Answer;

const TOKENS: u32 = 32;

/// The reason why there was no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamError {
    /// The clients' URL answered GET /v1/models with this status.
    #[error("GET /v1/models answered {0}")]
    Unserved(StatusCode),
    #[error("{0}")]
    Failed(String),
}

impl From<FetchError> for StreamError {
    fn from(error: FetchError) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) async fn run(
    http: &reqwest::Client,
    base: &str,
    key: Option<&str>,
) -> Result<Stream, StreamError> {
    let model = model(http, url(base, "/v1/models")?, key).await?;
    let body = json!({
        "model": model, "max_tokens": TOKENS, "stream": true,
        "messages": [{ "role": "user", "content": "Count from one to a hundred in words." }],
    });
    let mut request = http.post(url(base, "/v1/chat/completions")?).json(&body);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let read = timeout(PROMPTED.time, answered(request)).await;
    read.unwrap_or(Err(FetchError::Late(PROMPTED.time).into()))
}

fn url(base: &str, path: &str) -> Result<Url, StreamError> {
    let failed = |why: &str| StreamError::Failed(why.to_owned());
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let url: Url = format!("{base}{path}")
        .parse()
        .map_err(|_| failed("the URL is not understood"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(failed("the URL is neither http nor https")),
    }
}

async fn model(http: &reqwest::Client, url: Url, key: Option<&str>) -> Result<String, StreamError> {
    let (models, _) = get(http, url, key).await?;
    if !models.status.is_success() {
        return Err(StreamError::Unserved(models.status));
    }
    let models: Value = serde_json::from_slice(&models.body).unwrap_or_default();
    let model = models["data"][0]["id"].as_str().map(str::to_owned);
    model.ok_or_else(|| StreamError::Failed("GET /v1/models lists no model".to_owned()))
}

async fn answered(request: RequestBuilder) -> Result<Stream, StreamError> {
    let sent = Instant::now();
    let mut response = open(request, PROMPTED.time).await?;
    if !response.status().is_success() {
        let why = format!("a chat completion was answered {}", response.status());
        return Err(StreamError::Failed(why));
    }
    let named = named(response.headers());
    let (mut answer, mut bytes) = (Answer::default(), 0);
    while let Some(piece) = next(&mut response, PROMPTED.time).await? {
        bytes += piece.len();
        if bytes > PROMPTED.bytes {
            return Err(FetchError::TooLong(PROMPTED.bytes).into());
        }
        answer.push(&piece, sent.elapsed());
    }
    Ok(read(&answer, sent.elapsed().as_secs_f64() * 1e3, named))
}

fn read(answer: &Answer, took_ms: f64, named: Option<String>) -> Stream {
    let apart = answer.gaps_ms.iter().filter(|gap| **gap > 0.0).count();
    let is_empty = answer.first_token.is_none();
    Stream {
        pieces: if is_empty { 0 } else { answer.gaps_ms.len() + 1 },
        moments: if is_empty { 0 } else { apart + 1 },
        spread_ms: answer.gaps_ms.iter().map(|gap| f64::from(*gap)).sum(),
        took_ms,
        named,
    }
}

fn named(headers: &HeaderMap) -> Option<String> {
    let names = [VIA, SERVER]
        .into_iter()
        .filter_map(|name| headers.get(name)?.to_str().ok());
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pieces_that_arrive_together_are_one_moment() {
        let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let mut answer = Answer::default();
        answer.push(piece.repeat(3).as_bytes(), Duration::from_millis(100));
        answer.push(piece.as_bytes(), Duration::from_millis(150));
        let stream = read(&answer, 160.0, None);
        assert_eq!((stream.pieces, stream.moments), (4, 2));
        assert!((stream.spread_ms - 50.0).abs() < 0.1, "{stream:?}");
    }
}
