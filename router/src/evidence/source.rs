//! Where a worker publishes its cache's events.

use std::collections::BTreeMap;

use config::KvEvents;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tracing::debug;

use crate::app::App;
use crate::fleet::{Worker, probe};

/// A publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where to subscribe.
    pub endpoint: String,
    /// Where to ask for what was lost, if anywhere.
    pub replay: Option<String>,
    /// What its messages' first frame begins with.
    pub topic: String,
}

/// Finds a worker's publisher; `None` if it has none, or more than one behind the same address, whose blocks cannot be
/// told apart.
pub async fn find(app: &App, worker: &Worker) -> Option<Source> {
    match &worker.spec.kv_events {
        KvEvents::Off => None,
        KvEvents::At { endpoint, replay } => Some(Source {
            endpoint: endpoint.clone(),
            replay: replay.clone(),
            topic: String::new(),
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
        match probe::call(app, worker, Method::GET, path, None).await {
            Ok(answer) => match read(&answer, host).as_slice() {
                [only] => return Some(only.clone()),
                [] => {}
                several => debug!(
                    worker = worker.name(),
                    ranks = several.len(),
                    "events of several ranks behind one address: not used"
                ),
            },
            Err(error) => debug!(worker = worker.name(), path, %error, "it names no cache events"),
        }
    }
    None
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
    let reach = |source: VllmSource| {
        Some(Source {
            endpoint: reachable(&source.endpoint, host)?,
            replay: source
                .replay_endpoint
                .and_then(|endpoint| reachable(&endpoint, host)),
            topic: source.topic,
        })
    };
    let speaks = |source: &VllmSource| source.enable_kv_cache_events && source.publisher == "zmq";
    sources.into_values().filter(speaks).filter_map(reach).collect()
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
}
