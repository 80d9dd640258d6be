//! Facts read from a worker itself, and the two identical test prompts.

use std::process;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use policy::exposition::samples;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Options;
use super::exchange::{PROMPTED, get};
use super::facts::{CachedTokenReports, Direct, Engine, Offset, Prompt, WorkerFacts};
use crate::bounded::{Fetched, fetch};
use crate::drive::text::Words;
use simulator::fleet::mix;

/// Words of the prompt. Random words are one to three tokens each.
const WORDS: u64 = 500;

/// Reads a worker's facts. Sends the test prompts if they are allowed, the worker is healthy, and its responses to
/// turns have not shown that it caches prefixes.
pub(super) async fn run(
    http: &reqwest::Client,
    worker: &WorkerFacts,
    shown: Option<CachedTokenReports>,
    number: u64,
    options: &Options,
) -> Direct {
    let link = Link {
        http,
        worker,
        key: options.worker_key.as_deref(),
    };
    let mut direct = Direct::default();
    if let Err(error) = link.introduce(&mut direct).await {
        direct.unreachable = Some(error);
        return direct;
    }
    if options.probes && worker.is_up() && !shown.is_some_and(CachedTokenReports::caches_prefixes) {
        let prompts = link.prompts(number).await;
        direct.prompts = Some(prompts.map_err(|error| error.to_string()));
        if let Ok((_, clock)) = link.get("/health").await {
            direct.see_clock(clock);
        }
    }
    direct
}

struct Link<'a> {
    http: &'a reqwest::Client,
    worker: &'a WorkerFacts,
    key: Option<&'a str>,
}

impl Link<'_> {
    fn url(&self, path: &str) -> Result<Url, String> {
        let url = format!("{}{path}", self.worker.url.trim_end_matches('/'));
        let url: Url = url
            .parse()
            .map_err(|_| "its address is not understood".to_owned())?;
        match url.scheme() {
            "http" | "https" => Ok(url),
            _ => Err("its address is neither http nor https".to_owned()),
        }
    }

    async fn introduce(&self, direct: &mut Direct) -> Result<(), String> {
        let (response, clock) = self.get("/metrics").await?;
        direct.see_clock(clock);
        if response.status.is_success() {
            read_metrics(direct, &response.text(), self.worker.rank);
        }
        if let Some(sources) = self.document("/kv_event_sources").await {
            direct.names_publisher = Some(names_publisher(&sources));
        }
        if direct.engine != Engine::Vllm
            && let Some(info) = self.document("/server_info").await
        {
            read_server_info(direct, &info, self.worker.rank);
        }
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<(Fetched, Option<Offset>), String> {
        let answer = get(self.http, self.url(path)?, self.key).await;
        answer.map_err(|error| error.to_string())
    }

    async fn document(&self, path: &str) -> Option<Value> {
        let (response, _) = self.get(path).await.ok()?;
        response.status.is_success().then_some(())?;
        serde_json::from_slice(&response.body).ok()
    }

    async fn prompts(&self, number: u64) -> Result<[Prompt; 2], PromptError> {
        let model = match self.worker.models.first() {
            Some(model) => model.clone(),
            None => {
                let list = self.document("/v1/models").await.unwrap_or_default();
                let model = list["data"][0]["id"].as_str().map(str::to_owned);
                model.ok_or(PromptError::Failed("it lists no model".to_owned()))?
            }
        };
        let prompt = prompt(number);
        let whole = json!({ "model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0 });
        let chat = json!({
            "model": model, "messages": [{ "role": "user", "content": prompt }], "max_tokens": 1, "temperature": 0,
        });
        // A server of chats only, or one of completions only, refuses the other form.
        let (path, body, first) = match self.send("/v1/completions", &whole).await {
            Ok(first) => ("/v1/completions", whole, first),
            Err(PromptError::Refused(_)) => (
                "/v1/chat/completions",
                chat.clone(),
                self.send("/v1/chat/completions", &chat).await?,
            ),
            Err(error) => return Err(error),
        };
        Ok([first, self.send(path, &body).await?])
    }

    async fn send(&self, path: &str, body: &Value) -> Result<Prompt, PromptError> {
        let url = self.url(path).map_err(PromptError::Failed)?;
        let mut request = self.http.post(url).json(body);
        if let Some(key) = self.key {
            request = request.bearer_auth(key);
        }
        if let Some(rank) = self.worker.rank {
            request = request
                .header("x-data-parallel-rank", rank)
                .header("x-override-routed-dp-rank", rank);
        }
        let sent = Instant::now();
        let answer = fetch(request, PROMPTED).await;
        let answer = answer.map_err(|error| PromptError::Failed(error.to_string()))?;
        if !answer.status.is_success() {
            let said: String = answer.text().chars().take(160).collect();
            return Err(PromptError::Refused(format!(
                "{}: {said}",
                answer.status.as_u16()
            )));
        }
        let json: Value = serde_json::from_slice(&answer.body)
            .map_err(|_| PromptError::Failed("its answer is not JSON".to_owned()))?;
        Ok(read_prompt(&json, sent.elapsed()))
    }
}

/// The reason why a prompt has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PromptError {
    /// The server refused the prompt.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

fn read_prompt(answer: &Value, took: Duration) -> Prompt {
    let usage = &answer["usage"];
    Prompt {
        took_ms: took.as_secs_f64() * 1e3,
        prompt_tokens: usage["prompt_tokens"].as_u64().unwrap_or(0),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
    }
}

/// Returns random words, different for each run and each worker.
fn prompt(number: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let words = Words::new(mix(now.as_nanos() as u64) ^ u64::from(process::id()));
    let mut text = String::new();
    (0..WORDS).for_each(|at| words.push(&mut text, number, at));
    text
}

fn read_metrics(direct: &mut Direct, page: &str, rank: Option<u32>) {
    if page.contains("\nvllm:") || page.starts_with("vllm:") {
        direct.engine = Engine::Vllm;
    } else if page.contains("\nsglang:") || page.starts_with("sglang:") {
        direct.engine = Engine::Sglang;
    }
    let started = samples(page, "process_start_time_seconds").next();
    direct.started_unix_ms = started.map(|started| started.value * 1e3);
    for cache in samples(page, "vllm:cache_config_info") {
        match cache.label("enable_prefix_caching") {
            Some("True") => direct.caches_prefixes = Some(true),
            Some("False") => direct.caches_prefixes = Some(false),
            _ => {}
        }
        let number = |name| cache.label(name)?.parse::<u64>().ok();
        let is_own = rank.is_none() || number("engine") == rank.map(u64::from);
        if let (true, Some(blocks), Some(size)) = (is_own, number("num_gpu_blocks"), number("block_size")) {
            let sum = direct.capacity_tokens.unwrap_or(0);
            direct.capacity_tokens = Some(sum.saturating_add(blocks.saturating_mul(size)));
        }
    }
}

fn read_server_info(direct: &mut Direct, info: &Value, rank: Option<u32>) {
    direct.engine = Engine::Sglang;
    direct.caches_prefixes = info["disable_radix_cache"].as_bool().map(|disabled| !disabled);
    direct.reports_cached_tokens = info["enable_cache_report"].as_bool();
    direct.names_publisher = Some(info["kv_events"]["publisher"] == "zmq");
    let ranks = match rank {
        Some(_) => 1,
        None => info["dp_size"].as_u64().unwrap_or(1).max(1),
    };
    let of_a_rank = info["max_total_num_tokens"].as_u64();
    direct.capacity_tokens = of_a_rank
        .map(|tokens| tokens.saturating_mul(ranks))
        .or(direct.capacity_tokens);
}

/// Returns whether any rank in vLLM's answer has a publisher.
fn names_publisher(sources: &Value) -> bool {
    let mut ranks = sources.as_object().into_iter().flatten();
    ranks.any(|(_, source)| source["enable_kv_cache_events"] == true && source["publisher"] == "zmq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_page_says_engine_capacity_and_caching() {
        let page = "process_start_time_seconds 1.795e+09\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",engine=\"1\",num_gpu_blocks=\"500\"} 1.0\n";
        let read = |rank| {
            let mut direct = Direct::default();
            read_metrics(&mut direct, page, rank);
            direct
        };
        let direct = read(None);
        assert_eq!(
            (direct.engine, direct.caches_prefixes),
            (Engine::Vllm, Some(false))
        );
        assert_eq!(direct.started_unix_ms, Some(1.795e12));
        assert_eq!(
            (direct.capacity_tokens, read(Some(1)).capacity_tokens),
            (Some(24_000), Some(8_000))
        );
    }

    #[test]
    fn sglangs_server_info_says_the_same() {
        let mut direct = Direct::default();
        let info = json!({
            "disable_radix_cache": false, "enable_cache_report": true, "dp_size": 2, "max_total_num_tokens": 1000,
            "kv_events": { "publisher": "zmq" },
        });
        read_server_info(&mut direct, &info, None);
        assert_eq!(
            (
                direct.engine,
                direct.caches_prefixes,
                direct.reports_cached_tokens
            ),
            (Engine::Sglang, Some(true), Some(true))
        );
        assert_eq!(
            (direct.capacity_tokens, direct.names_publisher),
            (Some(2000), Some(true))
        );
    }

    #[test]
    fn no_two_prompts_begin_alike() {
        let (one, two) = (prompt(1), prompt(2));
        assert_ne!(one[..16], two[..16]);
        assert_eq!(one.split(' ').count() as u64, WORDS);
    }
}
