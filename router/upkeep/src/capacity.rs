//! Capacity in tokens of a worker's prefix cache, as the worker reports it. Queried where the configuration does not
//! give it: docs/learning.md, "Cache capacity". Reports are capped at [`MOST`], since a mirror's memory grows with the
//! capacity.

use bytes::Bytes;
use http::Method;
use policy::exposition::{MetricSample, samples};
use policy::residency::MOST_TOKENS as MOST;
use policy::units::Tokens;
use serde_json::Value;
use tracing::{info, warn};

use super::queues::exposition::rank_of;
use fleet::Worker;
use fleet::facts::{Fact, FactChange, FactSource};
use state::Routing;
use state::State;
use state::control;

/// Gauge of vLLM whose labels give the capacity.
const VLLM: &str = "vllm:cache_config_info";

/// Finds a worker's capacity and block size, and sets the capacity in its mirror. Fails if a query was not answered.
pub(super) async fn learn(
    state: &State,
    worker: &Worker,
    documents: [&Option<Bytes>; 2],
) -> Result<(), String> {
    if worker.spec.capacity_is_known {
        return Ok(());
    }
    let rank = worker.spec.rank;
    let mut said = documents
        .into_iter()
        .flatten()
        .find_map(|document| in_json(document, rank));
    let mut source = FactSource::Probed;
    if said.is_none() {
        source = FactSource::Metrics;
        let page = fetch(state, worker, "/metrics").await?.unwrap_or_default();
        let page = std::str::from_utf8(&page).unwrap_or_default();
        said = in_metrics(page, rank);
        if let Some(size) = block_size(page) {
            note_block_size(&state.routing, worker, size);
        }
    }
    if said.is_none() {
        source = FactSource::Probed;
        said = fetch(state, worker, "/server_info")
            .await?
            .and_then(|info| in_json(&info, rank));
    }
    if let Some(told) = said {
        take(&state.routing, worker, told, source);
    }
    Ok(())
}

/// Fetches a document; `None` if the worker has none.
async fn fetch(state: &State, worker: &Worker, path: &str) -> Result<Option<Bytes>, String> {
    match control::call(&state.transport, worker, Method::GET, path, None).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_absence() => Ok(None),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

/// Records the block size that an engine reports. A mirror counts in blocks of the configured size.
fn note_block_size(routing: &Routing, worker: &Worker, size: u32) {
    let change = worker.facts.learn(
        routing.clock.now(),
        Fact::BlockSize,
        FactSource::Metrics,
        size.to_string(),
    );
    if change != FactChange::Same && size != worker.spec.block_size {
        info!(
            worker = worker.name(),
            reported = size,
            configured = worker.spec.block_size,
            "the engine's block size differs from workers[].block_size_tokens; predicted hits are off by up to a block"
        );
    }
}

fn take(routing: &Routing, worker: &Worker, told: Tokens, source: FactSource) {
    let least = Tokens(u64::from(worker.spec.block_size) * 2);
    if told < least {
        warn!(
            worker = worker.name(),
            told = told.0,
            "reported capacity is below two blocks, ignored"
        );
        return;
    }
    let capacity = told.min(MOST);
    worker.facts.learn(
        routing.clock.now(),
        Fact::Capacity,
        source,
        capacity.0.to_string(),
    );
    if routing
        .knowledge
        .set_reported_capacity(worker.id, capacity, worker.spec.block_size)
    {
        info!(
            worker = worker.name(),
            capacity = capacity.0,
            "cache capacity reported"
        );
        routing.feedback.tail.lock().set_capacity(worker.id, capacity);
    }
}

/// Reads the capacity from a capability document, or from SGLang's server info.
fn in_json(document: &[u8], rank: Option<u32>) -> Option<Tokens> {
    let said: Value = serde_json::from_slice(document).ok()?;
    if let Some(tokens) = said["capacity_tokens"].as_u64() {
        return Some(Tokens(tokens));
    }
    let of_a_rank = said["max_total_num_tokens"].as_u64()?;
    let ranks = match rank {
        Some(_) => 1,
        None => said["dp_size"].as_u64().unwrap_or(1).max(1),
    };
    Some(Tokens(of_a_rank.saturating_mul(ranks)))
}

/// Reads the block size, if all ranks have the same.
fn block_size(page: &str) -> Option<u32> {
    let mut sizes = samples(page, VLLM).filter_map(|cache| cache.label("block_size")?.parse::<u32>().ok());
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

fn in_metrics(page: &str, rank: Option<u32>) -> Option<Tokens> {
    let of = |cache: MetricSample<'_>| {
        let number = |label| cache.label(label)?.parse::<u64>().ok();
        let tokens = number("num_gpu_blocks")?.saturating_mul(number("block_size")?);
        (rank.is_none() || rank_of(&cache) == rank).then_some(tokens)
    };
    let all = samples(page, VLLM).filter_map(of);
    all.reduce(u64::saturating_add).map(Tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_says_it_in_its_own_place() {
        let of = |text: &str, rank| in_json(text.as_bytes(), rank).map(|tokens| tokens.0);
        assert_eq!(
            of(r#"{"dialect":"tailroute","capacity_tokens":56000}"#, None),
            Some(56_000)
        );
        let sglang = r#"{"radix_eviction_policy":"lru","dp_size":2,"max_total_num_tokens":400000}"#;
        assert_eq!(
            (of(sglang, Some(1)), of(sglang, None)),
            (Some(400_000), Some(800_000))
        );
        assert_eq!(
            (
                of("{}", None),
                of("no", None),
                of(r#"{"capacity_tokens":-1}"#, None)
            ),
            (None, None, None)
        );
        let vllm = "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n\
            vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"1\",num_gpu_blocks=\"2000\"} 1.0\n";
        let of = |page: &str, rank| in_metrics(page, rank).map(|tokens| tokens.0);
        assert_eq!((of(vllm, Some(1)), of(vllm, None)), (Some(32_000), Some(48_000)));
        assert_eq!(of(vllm, Some(2)), None);
        assert_eq!(
            of(
                "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0\n",
                None
            ),
            None
        );
    }
}
