//! Facts about a worker. Everything but the model may remain unknown, because no engine serves all of these paths.

use policy::exposition::samples;
use serde::Deserialize;
use serde_json::Value;

use super::{Client, ProbeError};
use crate::sample::Facts;

#[derive(Deserialize)]
struct Models {
    data: Vec<Card>,
}

#[derive(Clone, Deserialize)]
struct Card {
    id: String,
    max_model_len: Option<u64>,
    owned_by: Option<String>,
}

/// Collects the facts of `wanted`, by default the first model listed. Fails if the worker is unreachable or lists none.
pub async fn facts(client: &Client, wanted: Option<&str>) -> Result<Facts, ProbeError> {
    let card = model(client, wanted).await?;
    let mut facts = Facts {
        model: card.id,
        context_tokens: card.max_model_len,
        engine: card.owned_by,
        ..Facts::default()
    };
    version(client, &mut facts).await;
    capabilities(client, &mut facts).await;
    server_info(client, &mut facts).await;
    if let Ok(page) = client.text("/metrics").await {
        cache_config(&page, &mut facts);
    }
    Ok(facts)
}

async fn model(client: &Client, wanted: Option<&str>) -> Result<Card, ProbeError> {
    let unknown = |id: &str| Card {
        id: id.to_owned(),
        max_model_len: None,
        owned_by: None,
    };
    match (client.json::<Models>("/v1/models").await, wanted) {
        (Ok(models), Some(wanted)) => Ok(models
            .data
            .into_iter()
            .find(|card| card.id == wanted)
            .unwrap_or_else(|| unknown(wanted))),
        (Ok(models), None) => models.data.into_iter().next().ok_or(ProbeError::NoModel),
        (Err(error @ (ProbeError::Connection(_) | ProbeError::Unauthorised { .. })), _)
        | (Err(error), None) => Err(error),
        (Err(_), Some(wanted)) => Ok(unknown(wanted)),
    }
}

/// Reads vLLM's `/version`.
async fn version(client: &Client, facts: &mut Facts) {
    let Ok(answer) = client.json::<Value>("/version").await else {
        return;
    };
    if let (Some(engine), Some(version)) = (&mut facts.engine, answer["version"].as_str()) {
        engine.push(' ');
        engine.push_str(version);
    }
}

/// Reads the capabilities document of engines with the `tailroute` dialect.
async fn capabilities(client: &Client, facts: &mut Facts) {
    let Ok(answer) = client.json::<Value>("/v1/tailroute").await else {
        return;
    };
    let text = |key: &str| answer[key].as_str().map(str::to_owned);
    facts.block_tokens = answer["block_size"].as_u64();
    facts.capacity_tokens = answer["capacity_tokens"].as_u64();
    facts.engine = facts.engine.take().or_else(|| text("engine"));
    facts.device = text("device");
    facts.driver = text("driver");
    facts.software = text("software");
}

/// Reads SGLang's `/server_info`.
async fn server_info(client: &Client, facts: &mut Facts) {
    let answer = match client.json::<Value>("/server_info").await {
        Ok(answer) => answer,
        Err(_) => match client.json::<Value>("/get_server_info").await {
            Ok(answer) => answer,
            Err(_) => return,
        },
    };
    if let Some(version) = answer["version"].as_str() {
        facts.engine = Some(format!("sglang {version}"));
    }
    facts.block_tokens = facts.block_tokens.or(answer["page_size"].as_u64());
    facts.capacity_tokens = facts.capacity_tokens.or(answer["max_total_num_tokens"].as_u64());
}

fn cache_config(page: &str, facts: &mut Facts) {
    let names = ["vllm:cache_config_info", "sglang:cache_config_info"];
    for cache in names.into_iter().flat_map(|name| samples(page, name)) {
        let number = |label| cache.label(label)?.parse::<u64>().ok();
        let block = number("block_size").or_else(|| number("page_size"));
        facts.block_tokens = facts.block_tokens.or(block);
        let blocks = number("num_gpu_blocks");
        let capacity = blocks
            .zip(block)
            .map(|(blocks, block)| blocks.saturating_mul(block));
        facts.capacity_tokens = facts.capacity_tokens.or(capacity);
    }
}

/// The load of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Running and waiting requests.
    pub requests: f64,
    /// Requests finished since the worker's start, if reported.
    pub finished: Option<f64>,
}

/// Reads a worker's load. Fails if the metrics page cannot be read, or lacks the load.
pub async fn load(client: &Client) -> Result<Load, ProbeError> {
    let page = match client.text("/metrics").await {
        Ok(page) => page,
        Err(ProbeError::Status { .. }) => return Err(ProbeError::NoMetrics),
        Err(error) => return Err(error),
    };
    let either = |vllm: &str, sglang: &str| sum(&page, vllm).or_else(|| sum(&page, sglang));
    let running = either("vllm:num_requests_running", "sglang:num_running_reqs");
    let waiting = either("vllm:num_requests_waiting", "sglang:num_queue_reqs");
    let (Some(running), Some(waiting)) = (running, waiting) else {
        return Err(ProbeError::NoMetrics);
    };
    Ok(Load {
        requests: running + waiting,
        finished: either("vllm:request_success_total", "sglang:num_requests_total"),
    })
}

/// Returns the sum of a metric's values; `None` if it is not on the page.
fn sum(page: &str, name: &str) -> Option<f64> {
    let values = samples(page, name).map(|sample| sample.value);
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_lines_and_no_other_metrics() {
        let page =
            "# TYPE a gauge\na{engine=\"0\",m=\"x y\"} 1.0\na{engine=\"1\"} 2\na_total 7\nb 5 1700000\n";
        assert_eq!(sum(page, "a"), Some(3.0));
        assert_eq!(sum(page, "b"), Some(5.0));
        assert_eq!(sum(page, "c"), None);
    }

    #[test]
    fn block_size_and_capacity_are_read_from_the_metrics_of_either_engine() {
        let mut facts = Facts::default();
        cache_config(
            "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1.0\n",
            &mut facts,
        );
        assert_eq!(
            (facts.block_tokens, facts.capacity_tokens),
            (Some(32), Some(3200))
        );
        let mut facts = Facts::default();
        cache_config("sglang:cache_config_info{page_size=\"1\"} 1.0\n", &mut facts);
        assert_eq!((facts.block_tokens, facts.capacity_tokens), (Some(1), None));
    }
}
