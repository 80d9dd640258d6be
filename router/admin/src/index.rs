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

/// Which prefixes are wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// Of which this worker holds something.
    worker: Option<String>,
    /// Which come first.
    order: Order,
    /// Most prefixes of the answer.
    #[schemars(range(min = 1, max = 200))]
    limit: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            worker: None,
            order: Order::Largest,
            limit: 50,
        }
    }
}

/// An order of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Whole conversations, the longest copy first.
    Largest,
    /// Whole conversations, the last used first.
    Newest,
    /// Beginnings that go on in several ways, those in the most ways first.
    Shared,
}

/// Prefixes.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    /// Distinct keys (pieces of prompts of 256 bytes to 4 KB, or an engine's blocks) that any worker holds.
    keys: u64,
    /// The same, counted once for each worker.
    entries: u64,
    /// Bytes that the index takes.
    bytes: u64,
    /// Whether all prefixes were looked at, and not only the 2,000 used last.
    complete: bool,
    /// As many of them as were asked for.
    prefixes: Vec<ShownPrefix>,
}

/// Where a prefix ends, or parts.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownPrefix {
    /// The hash that names it: 16 hexadecimal digits.
    prefix: String,
    /// Its keys.
    keys: u32,
    /// In how many ways known prefixes go on from it.
    forks: u32,
    /// Workers that hold any of its last part.
    holders: u32,
    /// Who holds how much of it, the longest copy first: at most 16 of them, or the worker that was asked for.
    copies: Vec<ShownCopy>,
}

/// What one worker holds of a prefix.
#[derive(Debug, Serialize, JsonSchema)]
struct ShownCopy {
    /// The worker.
    worker: String,
    /// Leading keys that it holds.
    keys: u32,
    /// Tokens in them, as far as they can be told.
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
        .query::<Wanted>(),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let wanted: Wanted = call.query()?;
    let admin = Arc::clone(&call.admin);
    let worker = wanted.worker.map(|name| {
        admin
            .state
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
    let stats = admin.state.knowledge.index_stats();
    let (mut found, complete) = admin.state.knowledge.newest_prefixes(LOOKED_AT, worker, COPIES);
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
    let workers = admin.state.fleet.workers();
    let copy = |copy: &policy::index::Copy| {
        Some(ShownCopy {
            worker: workers.get(copy.worker.index())?.name().to_owned(),
            keys: copy.keys,
            tokens: admin
                .state
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
