//! The aims for the routing rule: for the default, then for engines that support priorities.

use super::Changes;
use super::grid::Contender;

pub(super) struct Held {
    pub(super) aim: &'static str,
    pub(super) ours: Contender,
    pub(super) against: Contender,
    pub(super) hardest_only: bool,
    pub(super) met: fn(&Changes) -> bool,
}

const fn held(
    aim: &'static str,
    ours: Contender,
    against: Contender,
    hardest_only: bool,
    met: fn(&Changes) -> bool,
) -> Held {
    Held {
        aim,
        ours,
        against,
        hardest_only,
        met,
    }
}

const TAIL: Contender = Contender::Tail;
const PRIORITY: Contender = Contender::TailPriority;
const TREE: Contender = Contender::CacheAwareTree;
const INDEX: Contender = Contender::CacheAwareIndex;
const LEAST: Contender = Contender::LeastTtft;
const LRU: Contender = Contender::TailLru;

#[rustfmt::skip]
pub(super) const AIMS: [Held; 15] = [
    held("p95 at least 18 % below least_ttft at 4 / 8,000 / 1.1", TAIL, LEAST, true, |c| c.p95.means <= -18.0),
    held("p95 at least 15 % below cache_aware (tree)", TAIL, TREE, false, |c| c.p95.means <= -15.0),
    held("p95 at least 25 % below cache_aware (tree)", TAIL, TREE, false, |c| c.p95.means <= -25.0),
    held("p99 at least 12 % below cache_aware (tree)", TAIL, TREE, false, |c| c.p99.means <= -12.0),
    held("p95 at least 15 % below cache_aware (index)", TAIL, INDEX, false, |c| c.p95.means <= -15.0),
    held("p99 at least 12 % below cache_aware (index)", TAIL, INDEX, false, |c| c.p99.means <= -12.0),
    held("p95 at most 2 % above least_ttft", TAIL, LEAST, false, |c| c.p95.means <= 2.0),
    held("p95 at most 2 % above tail on LRU", TAIL, LRU, false, |c| c.p95.means <= 2.0),
    held("mean at most 2 % above tail on LRU", TAIL, LRU, false, |c| c.mean.means <= 2.0),
    held("p99 below tail on LRU", TAIL, LRU, false, |c| c.p99.means < 0.0),
    held("with priorities: p95 at least 18 % below least_ttft at 4 / 8,000 / 1.1", PRIORITY, LEAST, true, |c| c.p95.means <= -18.0),
    held("with priorities: p95 at least 15 % below cache_aware (tree)", PRIORITY, TREE, false, |c| c.p95.means <= -15.0),
    held("with priorities: p95 at least 25 % below cache_aware (tree)", PRIORITY, TREE, false, |c| c.p95.means <= -25.0),
    held("with priorities: p99 at least 12 % below cache_aware (tree)", PRIORITY, TREE, false, |c| c.p99.means <= -12.0),
    held("with priorities: p95 at most 2 % above least_ttft", PRIORITY, LEAST, false, |c| c.p95.means <= 2.0),
];
