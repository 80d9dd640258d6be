//! Where a worker publishes its cache's events.

use std::collections::BTreeMap;

use config::KvEvents;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tracing::{debug, warn};

use crate::app::App;
use crate::control;
use crate::fleet::Worker;

/// A publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where to subscribe.
    pub endpoint: String,
    /// Where to ask for what was lost, if anywhere.
    pub replay: Option<String>,
    /// What its messages' first frame begins with.
    pub topic: String,
    /// The data-parallel rank that it tells of, if it says.
    pub rank: Option<u32>,
}

/// Finds a worker's publisher: its rank's, where it is one rank of several. `None` if it has none, or if it has several and
/// was not said to: their blocks cannot be told apart.
pub async fn find(app: &App, worker: &Worker) -> Option<Source> {
    match &worker.spec.kv_events {
        KvEvents::Off => None,
        KvEvents::At { endpoint, replay } => Some(Source {
            endpoint: endpoint.clone(),
            replay: replay.clone(),
            topic: String::new(),
            rank: worker.spec.rank,
        }),
        KvEvents::Auto => ask(app, worker).await,
    }
}

async fn ask(app: &App, worker: &Worker) -> Option<Source> {
    let host = worker.spec.url.host().unwrap_or_default();
    for (path, read) in [
        ("/kv_event_sources", vllm as fn(&[u8], &str) -> Vec<Source>),
        ("/server_info", sglang),
    ] {
        let sources = match control::call(app, worker, Method::GET, path, None).await {
            Ok(answer) => read(&answer, host),
            Err(error) => {
                debug!(worker = worker.name(), path, %error, "it names no cache events");
                continue;
            }
        };
        match choose(&sources, worker.spec.rank) {
            Ok(Some(source)) => return Some(source.clone()),
            Ok(None) => {}
            Err(ranks) => {
                warn!(
                    worker = worker.name(),
                    ranks,
                    "its url has several data-parallel ranks: set `ranks`; until then its cache events are not used"
                );
                app.metrics.kv_stream(worker.name(), "ranks");
            }
        }
    }
    None
}

/// A rank's source among all of an endpoint's, or the only one, whose batches say whose they are. `Err` if there are
/// several and no rank.
fn choose(sources: &[Source], rank: Option<u32>) -> Result<Option<&Source>, usize> {
    match (sources, rank) {
        ([], _) => Ok(None),
        ([only], _) => Ok(Some(only)),
        (several, None) => Err(several.len()),
        (several, Some(rank)) => {
            let named = several.iter().find(|source| source.rank == Some(rank));
            Ok(named.or_else(|| several.get(rank as usize).filter(|source| source.rank.is_none())))
        }
    }
}

#[derive(Deserialize)]
struct VllmSource {
    enable_kv_cache_events: bool,
    publisher: String,
    endpoint: String,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// By data-parallel rank: `{"0": {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "topic", …}}`
fn vllm(answer: &[u8], host: &str) -> Vec<Source> {
    let Ok(sources) = serde_json::from_slice::<BTreeMap<String, VllmSource>>(answer) else {
        return Vec::new();
    };
    let reach = |(rank, source): (String, VllmSource)| {
        Some(Source {
            endpoint: reachable(&source.endpoint, host)?,
            replay: source
                .replay_endpoint
                .and_then(|endpoint| reachable(&endpoint, host)),
            topic: source.topic,
            rank: rank.parse().ok(),
        })
    };
    let speaks =
        |(_, source): &(String, VllmSource)| source.enable_kv_cache_events && source.publisher == "zmq";
    sources.into_iter().filter(speaks).filter_map(reach).collect()
}

/// `{"kv_events": {"publisher": "zmq", "endpoint_host", "endpoint_port_base", "topic", "dp_size"}}`
fn sglang(answer: &[u8], host: &str) -> Vec<Source> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let events = &answer["kv_events"];
    let (Some("zmq"), Some(base)) = (
        events["publisher"].as_str(),
        events["endpoint_port_base"].as_u64(),
    ) else {
        return Vec::new();
    };
    let ranks = events["dp_size"].as_u64().unwrap_or(1).clamp(1, 64);
    let named = events["endpoint_host"].as_str().unwrap_or("*");
    (0..ranks)
        .filter_map(|rank| {
            Some(Source {
                endpoint: reachable(&format!("tcp://{named}:{}", base + rank), host)?,
                replay: None,
                topic: events["topic"].as_str().unwrap_or_default().to_owned(),
                rank: u32::try_from(rank).ok(),
            })
        })
        .collect()
}

/// The endpoint as it can be reached from here: what an engine binds on every interface is on its own host.
fn reachable(endpoint: &str, host: &str) -> Option<String> {
    let (named, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|&port| port > 0)?;
    let host = match named {
        "*" | "0.0.0.0" | "[::]" | "::" | "" => host,
        named => named,
    };
    Some(format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_names_its_sources() {
        let answer =
            br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
            "replay_endpoint":"tcp://0.0.0.0:5558","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv"},
            "1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///x","replay_endpoint":null},
            "2":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}"#;
        let source = Source {
            endpoint: "tcp://worker:5557".to_owned(),
            replay: Some("tcp://worker:5558".to_owned()),
            topic: "kv".to_owned(),
            rank: Some(0),
        };
        assert_eq!(vllm(answer, "worker"), [source]);
        assert_eq!(vllm(b"{}", "worker"), []);
        assert_eq!(vllm(b"[]", "worker"), []);
    }

    #[test]
    fn sglang_names_a_port_for_each_rank() {
        let answer = br#"{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":7000,"topic":"","dp_size":2}}"#;
        let found: Vec<String> = sglang(answer, "[::1]")
            .into_iter()
            .map(|source| source.endpoint)
            .collect();
        assert_eq!(found, ["tcp://[::1]:7000", "tcp://[::1]:7001"]);
        assert_eq!(sglang(b"{}", "h"), []);
    }

    #[test]
    fn a_rank_takes_its_own_source_and_several_without_a_rank_are_refused() {
        let source = |port: u32, rank| Source {
            endpoint: format!("tcp://h:{port}"),
            replay: None,
            topic: String::new(),
            rank,
        };
        let port = |sources: &[Source], rank| {
            choose(sources, rank).map(|source| source.map(|source| source.endpoint.clone()))
        };
        let named = [source(2, Some(1)), source(1, Some(0))];
        assert_eq!(port(&named, Some(1)), Ok(Some("tcp://h:2".to_owned())));
        assert_eq!(port(&named, Some(2)), Ok(None));
        assert_eq!(port(&named, None), Err(2));
        let nameless = [source(1, None), source(2, None)];
        assert_eq!(port(&nameless, Some(1)), Ok(Some("tcp://h:2".to_owned())));
        let shared = [source(5, Some(0))];
        assert_eq!(
            port(&shared, Some(3)),
            Ok(Some("tcp://h:5".to_owned())),
            "its batches say whose they are"
        );
        assert_eq!(port(&[], None), Ok(None));
    }
}
