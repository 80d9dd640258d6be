//! Upper bound on the memory that external input can make the router hold, computed from the configuration.
//!
//! Every queue, buffer and table is bounded. `tailroute check` prints the sum; `serve` warns if the container has less.

use std::fmt;
use std::path::Path;

use config::Config;
use policy::residency::MOST_TOKENS;
use policy::units::Tokens;
use serde::Serialize;
use tracing::{info, warn};

use operator::recent;
use protocol::watch::UNCOUNTED_BYTES;
use server::{H2_SEND_BYTES, H2_STREAM_BYTES};
use state::MAX_COPIED_BYTES;
use tailroute_http::upstream;

/// The binary, its runtime and metrics without any traffic.
const OWN_BYTES: u64 = 96 << 20;
/// A connection: its task, hyper's state, two buffers, and the part of a head that is not counted elsewhere.
const CONNECTION_BYTES: u64 = 40 << 10;
/// The admin port: its connections, and the longest bodies of its requests.
const ADMIN_BYTES: u64 = 512 * (100 << 10) + 256 * (256 << 10);
const TLS_BYTES: u64 = 48 << 10;
/// A request in flight: its task, its parsed head, its prompt's keys and its records.
const REQUEST_BYTES: u64 = 32 << 10;
/// Tokens per block of a discovered worker, unless its template sets another value.
const FOUND_BLOCK_TOKENS: u32 = 16;
/// Most memory of one worker's blocks: 2^21 of them, twice while their table grows.
const BLOCKS_BYTES: u64 = 400 << 20;
/// A block in the mirror of a worker's cache: its node, its history and its names.
const MIRROR_BLOCK_BYTES: u64 = 128;
/// A worker's stream of cache events at its worst: a message being read, a replay, and the events of a batch.
const EVENT_BYTES: u64 = 40 << 20;
/// Conversations, token offsets, sessions, stored responses, models: tables of fixed size.
const TABLES_BYTES: u64 = 128 << 20;

/// Other replicas: their turns, queued messages, a snapshot being received and one being sent.
const REPLICAS_BYTES: u64 = (64 + 16 + 64 + 64) << 20;
/// The longest page of an API server's list, as text in two copies and parsed, and one event. Of 131,072 values a page of pods
/// with empty volumes takes most: 208 MiB.
const LISTS_BYTES: u64 = (2 * 16 + 216 + 8) << 20;
/// The audit log's queue and the log's buffers.
const LOGS_BYTES: u64 = 8 << 20;

/// One part of the budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Contents of the part.
    pub what: &'static str,
    /// Bound in bytes.
    pub bytes: u64,
    /// Keys that set the bound; empty if it is fixed.
    pub keys: &'static str,
}

/// Upper bound on the router's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Parts, in the order in which a request uses them.
    pub parts: Vec<Part>,
    /// Sum of the parts in bytes.
    pub bytes: u64,
    /// Discovered workers, which are not in the sum; `None` without discovery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<DiscoveryBudget>,
}

/// The memory of discovered workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DiscoveryBudget {
    /// Bytes for each worker.
    pub worker_bytes: u64,
    /// Most workers that discovery adds.
    pub max_workers: usize,
}

/// Returns the size of a cache's mirror. A worker without a configured capacity may report the largest one.
fn mirror_bytes(capacity: Option<Tokens>, block_tokens: u32) -> u64 {
    let blocks = capacity.unwrap_or(MOST_TOKENS).blocks_ceil(block_tokens);
    blocks.saturating_mul(MIRROR_BLOCK_BYTES)
}

/// A part, its bytes, and the keys that bound it.
type BudgetRow = (&'static str, u64, &'static str);

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn event_bytes(config: &Config) -> u64 {
    // Five halves: a message grows into a buffer half as large again, and a replay may run beside it.
    (count(config.limits.max_kv_message_bytes.get()).saturating_mul(5) / 2).saturating_add(EVENT_BYTES)
}

fn traffic(config: &Config) -> [BudgetRow; 7] {
    let limits = &config.limits;
    let connection = match config.tls.server {
        Some(_) => CONNECTION_BYTES + TLS_BYTES,
        None => CONNECTION_BYTES,
    };
    let connections = count(limits.max_connections.get()).saturating_mul(connection);
    let answer = count(upstream::MAX_HEAD_BYTES).max(count(H2_SEND_BYTES + UNCOUNTED_BYTES));
    let request = REQUEST_BYTES + answer.max(u64::from(H2_STREAM_BYTES));
    let in_flight = count(limits.max_in_flight.get()).saturating_mul(request);
    let picker = config.endpoint_picker.as_ref();
    let picker = picker.map_or(0, |picker| {
        count(picker.max_connections).saturating_mul(connection)
    });
    [
        ("the router itself", OWN_BYTES, ""),
        ("connections", connections, "limits.max_connections"),
        (
            "requests until their answers begin",
            count(limits.max_unread_bytes.get()),
            "limits.max_unread_bytes",
        ),
        (
            "requests in flight and their answers",
            in_flight,
            "limits.max_in_flight",
        ),
        ("responses that are being parsed", count(MAX_COPIED_BYTES), ""),
        (
            "connections of gateways",
            picker,
            "endpoint_picker.max_connections",
        ),
        ("the admin port", ADMIN_BYTES, ""),
    ]
}

fn tables(config: &Config) -> [BudgetRow; 9] {
    let events = event_bytes(config);
    let mirrors = config.workers.iter().map(|worker| {
        let capacity = worker.capacity_is_known.then_some(worker.capacity);
        mirror_bytes(capacity, worker.block_size)
    });
    let mirrors = mirrors.fold(0, u64::saturating_add);
    let tells = |worker: &config::Worker| worker.kv_events != config::KvEvents::Off;
    let publishers = count(config.workers.iter().filter(|worker| tells(worker)).count());
    let replicas = config.fleet.as_ref().map_or(0, |_| REPLICAS_BYTES);
    let lists = config.discovery.kubernetes.as_ref().map_or(0, |_| LISTS_BYTES);
    [
        (
            "the index",
            count(config.index.max_bytes.get()),
            "index.max_bytes",
        ),
        ("conversations and responses", TABLES_BYTES, ""),
        ("mirrors of workers' caches", mirrors, "workers.capacity_tokens"),
        (
            "blocks in workers' cache events",
            publishers.saturating_mul(BLOCKS_BYTES),
            "workers.kv_events",
        ),
        (
            "messages of cache events",
            publishers.saturating_mul(events),
            "limits.max_kv_message_bytes, workers.kv_events",
        ),
        (
            "recent decisions",
            count(config.explain.max_bytes),
            "explain.max_bytes",
        ),
        ("messages of other replicas", replicas, "fleet.nats"),
        ("lists of an API server", lists, "discovery.kubernetes"),
        (
            "captured turns, audit log, log",
            count(recent::DEFAULT_BYTES) + LOGS_BYTES,
            "",
        ),
    ]
}

impl Budget {
    /// Returns the budget of a router with this configuration.
    pub fn of(config: &Config) -> Self {
        let parts: Vec<Part> = traffic(config)
            .into_iter()
            .chain(tables(config))
            .filter(|(_, bytes, _)| *bytes > 0)
            .map(|(what, bytes, keys)| Part { what, bytes, keys })
            .collect();
        let bytes = parts
            .iter()
            .fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
        let found = config.discovery.is_on().then_some(DiscoveryBudget {
            worker_bytes: mirror_bytes(None, FOUND_BLOCK_TOKENS)
                .saturating_add(BLOCKS_BYTES)
                .saturating_add(event_bytes(config)),
            max_workers: config.discovery.max_workers,
        });
        Self { parts, bytes, found }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>9} MiB  worst-case memory", self.bytes.div_ceil(1 << 20))?;
        for Part { what, bytes, keys } in &self.parts {
            let keys = if keys.is_empty() {
                String::new()
            } else {
                format!(" ({keys})")
            };
            writeln!(f, "{:>9} MiB  {what}{keys}", bytes.div_ceil(1 << 20))?;
        }
        match self.found {
            Some(DiscoveryBudget { worker_bytes, .. }) => writeln!(
                f,
                "{:>9} MiB  more for each discovered worker (discovery.max_workers, limits.max_kv_message_bytes)",
                worker_bytes.div_ceil(1 << 20)
            ),
            None => Ok(()),
        }
    }
}

/// Logs the budget, and warns if the container has less memory.
pub fn report(config: &Config) {
    const MIB: u64 = 1 << 20;
    let budget = Budget::of(config);
    let memory_mib = budget.bytes.div_ceil(MIB);
    info!(memory_mib, "worst-case memory; `tailroute check` lists its parts");
    if let Some(limit) = container_limit().filter(|limit| *limit < budget.bytes) {
        let largest = budget.parts.iter().max_by_key(|part| part.bytes);
        warn!(
            memory_mib,
            limit_mib = limit / MIB,
            largest = largest.map(|part| part.keys),
            "the container's memory limit is below the router's worst-case memory: raise the limit, or lower the keys \
             that `tailroute check` lists"
        );
    }
}

/// Returns the memory limit of this process: the least of its control groups' limits. `None` if there is none.
pub fn container_limit() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut limits = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // The limits of parent groups apply too; in a container, paths start at its own root.
        for group in Path::new(path).ancestors() {
            let group = Path::new(root)
                .join(group.strip_prefix("/").unwrap_or(group))
                .join(file);
            limits.extend(std::fs::read_to_string(group).ok().and_then(|text| limit(&text)));
        }
    }
    limits.into_iter().min()
}

/// Parses a control group's limit, unless it is unlimited, which version 1 writes as a number beyond any memory.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < 1 << 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_sum_of_what_is_configured() {
        let budget = |more: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let text = format!("[[workers]]\nurl = \"http://127.0.0.1:1\"\n{more}");
            std::fs::write(&file, text).unwrap();
            let config = config::load_file(Some(file.path()), Default::default(), Default::default());
            Budget::of(&config.unwrap())
        };
        let plain = budget("");
        assert_eq!(
            plain.bytes,
            plain.parts.iter().map(|part| part.bytes).sum::<u64>()
        );
        let less = budget("[limits]\nmax_unread_bytes = 536870912\n");
        assert_eq!(plain.bytes - less.bytes, 512 << 20);
        assert_eq!(plain.found, None);
        let found = budget("[discovery.file]\npath = \"/workers.toml\"\n")
            .found
            .unwrap();
        let one_more = budget("[[workers]]\nurl = \"http://127.0.0.1:2\"\n");
        assert_eq!(found.worker_bytes, one_more.bytes - plain.bytes);
        let with_replicas = budget("[fleet]\nnats = \"nats://127.0.0.1:4222\"\n");
        assert_eq!(with_replicas.bytes - plain.bytes, REPLICAS_BYTES);
    }

    #[test]
    fn a_group_without_a_limit_has_none_in_either_version() {
        assert_eq!(limit("1073741824\n"), Some(1 << 30));
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
    }
}
