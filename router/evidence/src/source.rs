//! Finds the publisher of a worker's cache events.
//!
//! The worker reports ports of its own host. A reported host is only compared with that of the worker's URL, so that
//! no worker can make the router connect elsewhere; a publisher on another host must be configured (`kv_events`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::KvEvents;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tracing::{debug, warn};

use fleet::Worker;
use state::State;
use state::control;

/// The publisher of a worker's cache events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPublisher {
    /// Endpoint of the subscription.
    pub endpoint: String,
    /// Endpoint of replays, if the publisher has one.
    pub replay: Option<String>,
    /// Prefix of the messages' first frame.
    pub topic: String,
    /// The data-parallel rank of the events, if reported.
    pub rank: Option<u32>,
}

const MAX_TOPIC_BYTES: usize = 256;

/// Search for a worker's publisher. Rejected endpoints are logged once.
#[derive(Debug, Default)]
pub struct Finder {
    /// Last rejected endpoint.
    refused: Option<String>,
}

impl Finder {
    /// Returns a worker's publisher, or that of its rank, if there are several. `None` if there is none, if there are
    /// several and the worker's rank is not known, or if the publisher is on another host.
    pub async fn find(&mut self, state: &State, worker: &Worker) -> Option<EventPublisher> {
        match &worker.spec.kv_events {
            KvEvents::Off => None,
            KvEvents::At { endpoint, replay } => Some(EventPublisher {
                endpoint: endpoint.clone(),
                replay: replay.clone(),
                topic: String::new(),
                rank: worker.spec.rank,
            }),
            KvEvents::Auto => self.reachable(state, worker, ask(state, worker).await?),
        }
    }

    /// Returns the source with endpoints that the router can reach; `None` if the source is on another host.
    fn reachable(
        &mut self,
        state: &State,
        worker: &Worker,
        source: EventPublisher,
    ) -> Option<EventPublisher> {
        let host = worker.spec.url.host().unwrap_or_default();
        let mut reach = |named: &str| {
            let reached = on_own_host(named, host);
            if reached.is_none() {
                self.refuse(state, worker, named);
            }
            reached
        };
        let endpoint = reach(&source.endpoint)?;
        let replay = source.replay.as_deref().and_then(reach);
        Some(EventPublisher {
            endpoint,
            replay,
            ..source
        })
    }

    fn refuse(&mut self, state: &State, worker: &Worker, named: &str) {
        state.routing.metrics.kv_stream(worker.name(), "refused");
        if self.refused.as_deref() != Some(named) {
            warn!(
                worker = worker.name(),
                endpoint = named,
                "the reported publisher of cache events is on another host and is ignored; set the worker's \
                 `kv_events` and `kv_events_replay` to use it"
            );
            self.refused = Some(named.to_owned());
        }
    }
}

async fn ask(state: &State, worker: &Worker) -> Option<EventPublisher> {
    for (path, read) in [
        ("/kv_event_sources", vllm as fn(&[u8]) -> Vec<EventPublisher>),
        ("/server_info", sglang),
    ] {
        let sources = match control::call(&state.transport, worker, Method::GET, path, None).await {
            Ok(answer) => read(&answer),
            Err(error) => {
                debug!(worker = worker.name(), path, %error, "no cache event endpoint reported");
                continue;
            }
        };
        match choose(&sources, worker.spec.rank) {
            Ok(Some(source)) => return Some(source.clone()),
            Ok(None) => {}
            Err(ranks) => {
                warn!(
                    worker = worker.name(),
                    ranks, "the worker has several data-parallel ranks: set `ranks` to use its cache events"
                );
                state.routing.metrics.kv_stream(worker.name(), "ranks");
            }
        }
    }
    None
}

/// Returns the rank's source, or the only one, which all ranks share. Fails with the number of sources if the rank is
/// unknown.
fn choose(sources: &[EventPublisher], rank: Option<u32>) -> Result<Option<&EventPublisher>, usize> {
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

/// Parses vLLM's answer: `{"0": {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "topic", …}}`,
/// by data-parallel rank.
fn vllm(answer: &[u8]) -> Vec<EventPublisher> {
    let Ok(sources) = serde_json::from_slice::<BTreeMap<String, VllmSource>>(answer) else {
        return Vec::new();
    };
    let usable = |source: &VllmSource| {
        source.enable_kv_cache_events
            && source.publisher == "zmq"
            && host_and_port(&source.endpoint).is_some()
            && source.topic.len() <= MAX_TOPIC_BYTES
    };
    sources
        .into_iter()
        .filter(|(_, source)| usable(source))
        .map(|(rank, source)| EventPublisher {
            endpoint: source.endpoint,
            replay: source
                .replay_endpoint
                .filter(|endpoint| host_and_port(endpoint).is_some()),
            topic: source.topic,
            rank: rank.parse().ok(),
        })
        .collect()
}

/// Parses SGLang's answer: `{"kv_events": {"publisher": "zmq", "endpoint_host", "endpoint_port_base", "topic",
/// "dp_size"}}`.
fn sglang(answer: &[u8]) -> Vec<EventPublisher> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let events = &answer["kv_events"];
    let base = events["endpoint_port_base"]
        .as_u64()
        .and_then(|port| u16::try_from(port).ok());
    let topic = events["topic"].as_str().unwrap_or_default();
    let (Some("zmq"), Some(base)) = (events["publisher"].as_str(), base) else {
        return Vec::new();
    };
    if topic.len() > MAX_TOPIC_BYTES {
        return Vec::new();
    }
    let ranks = events["dp_size"].as_u64().unwrap_or(1).clamp(1, 64) as u16;
    let host = events["endpoint_host"].as_str().unwrap_or("*");
    (0..ranks)
        .filter_map(|rank| {
            let port = base.checked_add(rank).filter(|&port| port > 0)?;
            Some(EventPublisher {
                endpoint: format!("tcp://{host}:{port}"),
                replay: None,
                topic: topic.to_owned(),
                rank: Some(rank.into()),
            })
        })
        .collect()
}

/// Splits `tcp://host:port`.
fn host_and_port(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    port.parse()
        .ok()
        .filter(|&port| port > 0)
        .map(|port| (host, port))
}

/// Returns an endpoint on the worker's own host; `None` if the endpoint names another host. A wildcard names no host.
fn on_own_host(endpoint: &str, own: &str) -> Option<String> {
    let (named, port) = host_and_port(endpoint)?;
    let is_own = match (address(named), address(own)) {
        (Some(named), Some(own)) => named == own || named.is_unspecified(),
        (Some(named), None) => named.is_unspecified() || own == "localhost" && is_localhost(named),
        (None, Some(own)) => matches!(named, "*" | "") || named == "localhost" && is_localhost(own),
        (None, None) => matches!(named, "*" | "") || named.eq_ignore_ascii_case(own),
    };
    is_own.then(|| format!("tcp://{own}:{port}"))
}

fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address: IpAddr = bare.unwrap_or(host).parse().ok()?;
    Some(address.to_canonical())
}

/// Returns whether an address is that of `localhost`. Other loopback addresses are other hosts.
fn is_localhost(address: IpAddr) -> bool {
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_sources_are_parsed() {
        let answer =
            br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
            "replay_endpoint":"tcp://0.0.0.0:5558","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv"},
            "1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///x","replay_endpoint":null},
            "2":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}"#;
        let source = EventPublisher {
            endpoint: "tcp://*:5557".to_owned(),
            replay: Some("tcp://0.0.0.0:5558".to_owned()),
            topic: "kv".to_owned(),
            rank: Some(0),
        };
        assert_eq!(vllm(answer), [source]);
        assert_eq!(vllm(b"{}"), []);
        assert_eq!(vllm(b"[]"), []);
    }

    #[test]
    fn sglangs_sources_are_parsed_with_a_port_per_rank() {
        let named = |base: &str| {
            let answer = format!(
                r#"{{"kv_events":{{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":{base},"topic":"","dp_size":2}}}}"#
            );
            let endpoints = sglang(answer.as_bytes())
                .into_iter()
                .map(|source| source.endpoint);
            endpoints.collect::<Vec<_>>()
        };
        assert_eq!(named("7000"), ["tcp://*:7000", "tcp://*:7001"]);
        assert_eq!(named("65535"), ["tcp://*:65535"], "the next port does not exist");
        assert!(named("65536").is_empty());
        assert!(named("18446744073709551615").is_empty());
        assert_eq!(sglang(b"{}"), []);
    }

    #[test]
    fn an_overlong_topic_is_rejected() {
        let topic = "t".repeat(MAX_TOPIC_BYTES + 1);
        let vllm_says = format!(
            r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:1","topic":"{topic}"}}}}"#
        );
        let sglang_says =
            format!(r#"{{"kv_events":{{"publisher":"zmq","endpoint_port_base":1,"topic":"{topic}"}}}}"#);
        assert_eq!(
            (vllm(vllm_says.as_bytes()), sglang(sglang_says.as_bytes())),
            (vec![], vec![])
        );
    }

    #[test]
    fn only_the_host_of_a_workers_url_is_connected_to() {
        let own = [
            ("tcp://*:5557", "worker", "tcp://worker:5557"),
            ("tcp://:5557", "worker", "tcp://worker:5557"),
            ("tcp://0.0.0.0:5557", "10.0.0.5", "tcp://10.0.0.5:5557"),
            ("tcp://[::]:5557", "[fd00::5]", "tcp://[fd00::5]:5557"),
            ("tcp://:::5557", "worker", "tcp://worker:5557"),
            ("tcp://Worker:5557", "worker", "tcp://worker:5557"),
            ("tcp://10.0.0.5:1", "10.0.0.5", "tcp://10.0.0.5:1"),
            ("tcp://[fd00:0::5]:65535", "[fd00::5]", "tcp://[fd00::5]:65535"),
            ("tcp://127.0.0.1:5557", "localhost", "tcp://localhost:5557"),
            ("tcp://localhost:5557", "127.0.0.1", "tcp://127.0.0.1:5557"),
            ("tcp://[::ffff:10.0.0.5]:5557", "10.0.0.5", "tcp://10.0.0.5:5557"),
        ];
        for (named, host, reached) in own {
            assert_eq!(
                on_own_host(named, host).as_deref(),
                Some(reached),
                "{named} of {host}"
            );
        }
        let others = [
            ("tcp://127.0.0.9:7999", "127.0.0.1"),
            ("tcp://127.0.0.9:7999", "localhost"),
            ("tcp://localhost:5557", "127.0.0.9"),
            ("tcp://169.254.169.254:80", "10.0.0.5"),
            ("tcp://10.0.0.6:5557", "10.0.0.5"),
            ("tcp://10.0.0.5:5557", "worker"),
            ("tcp://worker.evil:5557", "worker"),
            ("tcp://worker@evil:5557", "worker"),
            ("tcp://worker:0", "worker"),
            ("tcp://worker:65536", "worker"),
            ("ipc:///tmp/x", "worker"),
        ];
        for (named, host) in others {
            assert_eq!(on_own_host(named, host), None, "{named} of {host}");
        }
    }

    #[test]
    fn a_rank_uses_its_own_source_and_several_sources_need_a_rank() {
        let source = |port: u32, rank| EventPublisher {
            endpoint: format!("tcp://h:{port}"),
            replay: None,
            topic: String::new(),
            rank,
        };
        let port = |sources: &[EventPublisher], rank| {
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
