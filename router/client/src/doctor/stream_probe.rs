//! A streamed completion through the URL that clients use.

use reqwest::Url;
use reqwest::header::{HeaderMap, SERVER, VIA};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::exchange::{PROMPT_PATIENCE, explain, get};
use super::facts::Stream;
use crate::drive::answer::Answer;

const TOKENS: u32 = 32;

pub(super) async fn run(http: &reqwest::Client, base: &str, key: Option<&str>) -> Result<Stream, String> {
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let url = |path: &str| -> Result<Url, String> {
        let url: Url = format!("{base}{path}")
            .parse()
            .map_err(|_| "the URL is not understood".to_owned())?;
        match url.scheme() {
            "http" => Ok(url),
            _ => Err("the URL is https, which this command does not speak".to_owned()),
        }
    };
    let (models, _) = get(http, url("/v1/models")?, key).await?;
    if !models.status().is_success() {
        return Err(format!("GET /v1/models answered {}", models.status()));
    }
    let models: Value = models.json().await.map_err(|error| explain(&error))?;
    let model = models["data"][0]["id"].as_str().ok_or("it lists no model")?;
    let body = json!({
        "model": model, "max_tokens": TOKENS, "stream": true,
        "messages": [{ "role": "user", "content": "Count from one to a hundred in words." }],
    });
    let mut request = http
        .post(url("/v1/chat/completions")?)
        .json(&body)
        .timeout(PROMPT_PATIENCE);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let sent = Instant::now();
    let mut response = request.send().await.map_err(|error| explain(&error))?;
    if !response.status().is_success() {
        return Err(format!("a chat completion was answered {}", response.status()));
    }
    let named = named(response.headers());
    let mut answer = Answer::default();
    while let Some(bytes) = response.chunk().await.map_err(|error| explain(&error))? {
        answer.push(&bytes, sent.elapsed());
    }
    let took_ms = sent.elapsed().as_secs_f64() * 1e3;
    Ok(read(&answer, took_ms, named))
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
