//! A worker's cache: the block cache of the engines, or one that ranks its blocks.

use policy::cache::{Change, Keep, Lease, Piece, PrefixCache};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

use super::cache_rule::CacheRule;
use super::ranked_cache::{BlockLease, RankedCache};
use super::workload::Workload;
use super::{FleetConfig, WorkerSpec};
use crate::served::Served;

#[derive(Debug)]
pub(super) enum WorkerCache {
    Prefix {
        cache: Box<PrefixCache>,
        block_tokens: u32,
        pieces: Vec<Piece>,
    },
    Ranked(Box<dyn RankedCache>),
}

#[derive(Debug)]
pub(super) enum WorkerLease {
    Prefix(Lease),
    Ranked(BlockLease),
}

impl WorkerLease {
    pub(super) fn hit_tokens(&self) -> Tokens {
        match self {
            Self::Prefix(lease) => lease.hit_tokens(),
            Self::Ranked(lease) => lease.hit_tokens,
        }
    }
}

pub(super) fn build(workload: &Workload, config: &FleetConfig) -> Vec<WorkerCache> {
    if let CacheRule::Ranked(rule) = config.cache {
        let caches = (rule.caches)(workload, config);
        return caches.into_iter().map(WorkerCache::Ranked).collect();
    }
    let cache = |spec: &WorkerSpec| WorkerCache::Prefix {
        cache: Box::new(PrefixCache::new(spec.capacity)),
        block_tokens: workload.block_tokens,
        pieces: Vec::new(),
    };
    config.workers.iter().map(cache).collect()
}

impl WorkerCache {
    pub(super) fn acquire(&mut self, now: Millis, chain: &Chain, changes: &mut Vec<Change>) -> WorkerLease {
        match self {
            Self::Prefix {
                cache,
                block_tokens,
                pieces,
            } => {
                cut(chain, *block_tokens, pieces);
                WorkerLease::Prefix(cache.acquire(pieces, changes))
            }
            Self::Ranked(cache) => WorkerLease::Ranked(cache.acquire(now, chain.hashes(), changes)),
        }
    }

    /// Ends a sequence, whose response joins the cache. `keep` is for the LRU family, and `turn` for ranked caches.
    pub(super) fn release(
        &mut self,
        lease: WorkerLease,
        reply: &Chain,
        keep: Keep,
        turn: &Served,
        changes: &mut Vec<Change>,
    ) {
        match (self, lease) {
            (
                Self::Prefix {
                    cache,
                    block_tokens,
                    pieces,
                },
                WorkerLease::Prefix(mut lease),
            ) => {
                cut(reply, *block_tokens, pieces);
                cache.extend(&mut lease, pieces, changes);
                cache.release(lease, keep, changes);
            }
            (Self::Ranked(cache), WorkerLease::Ranked(mut lease)) => {
                cache.extend(&mut lease, reply.hashes(), changes);
                cache.release(lease, turn);
            }
            (Self::Prefix { .. }, _) | (Self::Ranked(_), _) => {
                debug_assert!(false, "a lease of another cache");
            }
        }
    }

    pub(super) fn passed(&mut self, turn: u32) {
        if let Self::Ranked(cache) = self {
            cache.passed(turn);
        }
    }

    /// Returns the tokens that can be stored before anything unmarked is evicted: unlimited for ranked caches.
    pub(super) fn room(&self) -> Tokens {
        match self {
            Self::Prefix { cache, .. } => cache.room(),
            Self::Ranked(_) => Tokens(u64::MAX),
        }
    }

    pub(super) fn trim(&mut self, end: PrefixHash, keep: Tokens) {
        if let Self::Prefix { cache, .. } = self {
            let _ = cache.trim(end, keep);
        }
    }

    pub(super) fn clear(&mut self, changes: &mut Vec<Change>) {
        match self {
            Self::Prefix { cache, .. } => cache.clear(changes),
            Self::Ranked(cache) => cache.clear(changes),
        }
    }

    pub(super) fn contains(&self, hash: PrefixHash) -> bool {
        match self {
            Self::Prefix { cache, .. } => cache.contains(hash),
            Self::Ranked(cache) => cache.contains(hash),
        }
    }

    pub(super) fn used(&self) -> Tokens {
        match self {
            Self::Prefix { cache, .. } => cache.used(),
            Self::Ranked(cache) => cache.tokens(),
        }
    }
}

fn cut(chain: &Chain, tokens: u32, pieces: &mut Vec<Piece>) {
    pieces.clear();
    pieces.extend(chain.hashes().iter().map(|&hash| Piece { hash, tokens }));
}
