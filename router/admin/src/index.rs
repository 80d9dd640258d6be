//! The prefixes in the index: ends and branch points, by size, last use or sharing. The index stores no text.

use std::cmp::Reverse;
use std::sync::Arc;

use policy::ids::WorkerId;
use policy::index::Prefix;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use crate::Admin;

/// Prefixes examined, most recently used first. Bounds the time that writers wait to a fraction of a millisecond.
const LOOKED_AT: usize = 2_000;
const COPIES: usize = 16;
const MOST: usize = 200;

/// Selection of prefixes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct PrefixesQuery {
    /// Name of a worker: only prefixes of which it holds a part. All prefixes if absent.
    worker: Option<String>,
    /// Order of the prefixes; `largest` unless given.
    order: Order,
    /// Most prefixes to return; 50 unless given.
    #[schemars(range(min = 1, max = 200))]
    limit: usize,
}

impl Default for PrefixesQuery {
    fn default() -> Self {
        Self {
            worker: None,
            order: Order::Largest,
            limit: 50,
        }
    }
}

/// Order of prefixes, and whether ends or branch points are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Ends of prefixes, those with the longest copy first.
    Largest,
    /// Ends of prefixes, the most recently used first.
    Newest,
    /// Branch points, those with the most continuations first.
    Shared,
}

/// Size of the index, and some of its prefixes.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    /// Number of distinct keys that workers hold: pieces of prompts of 256 bytes to 4 KB, or an engine's blocks.
    keys: u64,
    /// Number of keys that workers hold, each counted once per worker.
    entries: u64,
    /// Size of the index in bytes.
    bytes: u64,
    /// Whether all prefixes were examined, and not only the 2,000 most recently used.
    complete: bool,
    /// The selected prefixes, at most `limit`.
    prefixes: Vec<ShownPrefix>,
}

/// A point where prefixes end or branch.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownPrefix {
    /// Hash that identifies the prefix, as 16 hexadecimal digits.
    prefix: String,
    /// Number of keys in the prefix.
    keys: u32,
    /// Number of known continuations; 0 at an end.
    forks: u32,
    /// Number of workers that hold any of the prefix's last part.
    holders: u32,
    /// Copies of the prefix, the longest first: at most 16, or only that of the selected worker.
    copies: Vec<ShownCopy>,
}

/// One worker's copy of a prefix.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownCopy {
    /// Name of the worker.
    worker: String,
    /// Number of leading keys that the worker holds.
    keys: u32,
    /// Number of tokens in those keys; `null` if unknown.
    tokens: Option<u64>,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<Shown, _, _>(
            "index.get",
            "/admin/v1/index",
            "Recently used prefixes on the workers: the largest, the newest or the most shared; no text",
            list,
        )
        .query::<PrefixesQuery>(),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let wanted: PrefixesQuery = call.query()?;
    let admin = Arc::clone(&call.admin);
    let worker = wanted.worker.map(|name| {
        admin
            .state
            .routing
            .fleet
            .find(&name)
            .map(|worker| worker.id)
            .ok_or_else(|| {
                Problem::malformed(format!(
                    "worker: there is no `{name}`; GET /admin/v1/workers names them all"
                ))
            })
    });
    let (worker, order, limit) = (worker.transpose()?, wanted.order, wanted.limit.clamp(1, MOST));
    // Walking long prompts takes time, so it runs on a blocking thread.
    let looked = tokio::task::spawn_blocking(move || shown(&admin, worker, order, limit));
    let shown = looked
        .await
        .map_err(|error| Problem::internal(format!("cannot read the index: {error}")))?;
    Reply::json(&shown)
}

fn shown(admin: &Admin, worker: Option<WorkerId>, order: Order, limit: usize) -> Shown {
    let stats = admin.state.routing.knowledge.index_stats();
    let (mut found, complete) = admin
        .state
        .routing
        .knowledge
        .newest_prefixes(LOOKED_AT, worker, COPIES);
    found.retain(|prefix| (prefix.forks > 1) == (order == Order::Shared));
    let longest = |prefix: &Prefix| prefix.copies.iter().map(|copy| copy.keys).max().unwrap_or(0);
    match order {
        Order::Newest => {}
        Order::Largest => found.sort_by_key(|prefix| Reverse(longest(prefix))),
        Order::Shared => found.sort_by_key(|prefix| Reverse((prefix.forks, prefix.keys))),
    }
    found.truncate(limit);
    Shown {
        keys: stats.keys,
        entries: stats.entries,
        bytes: stats.bytes,
        complete,
        prefixes: found.into_iter().map(|prefix| one(admin, prefix)).collect(),
    }
}

fn one(admin: &Admin, mut prefix: Prefix) -> ShownPrefix {
    prefix.copies.sort_by_key(|copy| Reverse(copy.keys));
    let workers = admin.state.routing.fleet.workers();
    let copy = |copy: &policy::index::Copy| {
        Some(ShownCopy {
            worker: workers.get(copy.worker.index())?.name().to_owned(),
            keys: copy.keys,
            tokens: admin
                .state
                .routing
                .knowledge
                .tokens_up_to(copy.worker, copy.last)
                .map(|tokens| tokens.0),
        })
    };
    ShownPrefix {
        prefix: format!("{:016x}", prefix.last.0),
        keys: prefix.keys,
        forks: prefix.forks,
        holders: prefix.holders,
        copies: prefix.copies.iter().filter_map(copy).collect(),
    }
}
