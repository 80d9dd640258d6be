//! A worker's cache: the block cache of the engines, or one that ranks its blocks.

use std::sync::Arc;

use super::cache_rule::CacheRule;
use super::ranked_rule::RankedRule;
use super::workload::Workload;
use super::{FleetConfig, WorkerSpec};
use crate::cache::blocks::scored::leased::{self, BlockLease, LeasedBlocks};
use crate::cache::blocks::uses::{Upcoming, Uses};
use crate::cache::{CacheConfig, Served};
use policy::cache::{Change, Keep, Lease, Piece, PrefixCache};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::slo;
use policy::units::{Millis, Tokens};

#[derive(Debug)]
pub(super) enum WorkerCache {
    Prefix {
        cache: Box<PrefixCache>,
        block_tokens: u32,
        pieces: Vec<Piece>,
    },
    Ranked(Box<dyn LeasedBlocks>),
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
            Self::Ranked(lease) => lease.hit_tokens(),
        }
    }
}

pub(super) fn build(workload: &Workload, config: &FleetConfig) -> Vec<WorkerCache> {
    let hindsight = matches!(config.cache, CacheRule::Ranked(rule) if rule.is_hindsight());
    let uses = hindsight.then(|| {
        let chains = workload.items.iter().map(|item| item.chain.hashes());
        Arc::new(Uses::new(chains))
    });
    let uses = uses.unwrap_or_default();
    let cache = |spec: &WorkerSpec| match config.cache {
        CacheRule::Ranked(rule) => WorkerCache::Ranked(ranked(rule, spec, workload, config, &uses)),
        _ => WorkerCache::Prefix {
            cache: Box::new(PrefixCache::new(spec.capacity)),
            block_tokens: workload.block_tokens,
            pieces: Vec::new(),
        },
    };
    config.workers.iter().map(cache).collect()
}

fn ranked(
    rule: RankedRule,
    spec: &WorkerSpec,
    workload: &Workload,
    config: &FleetConfig,
    uses: &Arc<Uses>,
) -> Box<dyn LeasedBlocks> {
    let cache = CacheConfig {
        block_tokens: workload.block_tokens,
        ..CacheConfig::new(spec.capacity)
    };
    let hindsight = |budgets| {
        let score = Upcoming::new(Arc::clone(uses), workload.len(), budgets);
        leased::hindsight(cache, score)
    };
    match rule {
        RankedRule::Gdfs => {
            let linear = spec.cost.alpha_ms_per_token.max(f64::MIN_POSITIVE);
            leased::gdfs(cache, spec.cost.gamma_ms_per_token2 / linear)
        }
        RankedRule::WorkloadAware => leased::workload_aware(cache),
        RankedRule::Belady => hindsight(None),
        RankedRule::ToBelady => hindsight(Some(budgets(spec, workload, config.target.ttft))),
    }
}

/// Returns, by turn, the prompt tokens that this worker must hold for the turn to start within its objective.
fn budgets(spec: &WorkerSpec, workload: &Workload, objective: Millis) -> Vec<Tokens> {
    let items = workload.items.iter();
    let budget = items.map(|item| {
        let objective = item.objective.unwrap_or(objective);
        let xi = slo::xi_tokens(&spec.cost, objective, Millis::ZERO, item.prompt);
        // A budget rounded up: the cast is the floor of ξ, and saturates.
        item.prompt.saturating_sub(Tokens(xi as u64))
    });
    budget.collect()
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
