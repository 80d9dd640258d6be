//! The ranking policies on hash blocks that conversations share.
//!
//! A finished chain in [`crate::simulate::shared`] carries the length worth keeping, which suffices for the LRU family.
//! The policies here compare blocks of different chains: a prefix-closed tree, whose evictable blocks (leaves, or a
//! hybrid model's states) are ordered. A turn's blocks become resident and are touched, then the lowest evictable ones
//! are evicted until the cache fits: those just served compete with the others, as under optional caching.
//!
//! - *The last turn decides* the value of a block that several conversations use, as in [`crate::simulate::shared`]. A
//!   sum over all of them would need each of their returns and ends, and ends are never observed.
//! - A block's value counts only when it has no children: a shared block stays as long as any of its branches.
//! - *Hindsight is per block*, not per conversation: the next user of a block may be any conversation ([`foresight`]).

pub mod foresight;
pub mod hybrid;
#[cfg(test)]
mod naive;
pub mod scored;
mod scores;
#[cfg(test)]
mod tests;
pub mod tiered;
mod tree;
pub mod trimmed;
pub mod uses;

use std::sync::Arc;

use self::foresight::Foresight;
use self::hybrid::HybridBlocks;
use self::scored::ScoredBlocks;
use self::scores::{ClassReuse, Excess, Frequency, Hindsight};
use self::tiered::TieredBlocks;
use self::trimmed::{Pass, TrimmedBlocks};
use super::{CacheConfig, PolicySpec, Served};
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

/// A cache of shared blocks under one policy.
pub trait BlockPolicy {
    /// Returns the tokens of a chain that need no prefill now.
    fn cached(&self, chain: &[PrefixHash]) -> Tokens;

    /// Returns the time to load the resident blocks of a chain to where prefill can use them: zero without tiers.
    fn load_time(&self, chain: &[PrefixHash]) -> Millis {
        let _ = chain;
        Millis::ZERO
    }

    /// Records a served turn whose full blocks are `chain`, and makes room.
    fn served(&mut self, chain: &[PrefixHash], turn: &Served);

    /// Returns all resident tokens.
    fn used(&self) -> Tokens;

    /// Returns the resident blocks, in no particular order.
    fn dump(&self) -> Vec<PrefixHash>;

    /// Checks the invariants between calls. Fails with the first broken one.
    fn check(&self) -> Result<(), String>;
}

/// Implements the methods of [`BlockPolicy`] that a tree of blocks can answer.
macro_rules! blocks_of_tree {
    () => {
        fn cached(&self, chain: &[PrefixHash]) -> Tokens {
            Tokens(self.tree.walk(chain).count() as u64 * self.config.block())
        }

        fn used(&self) -> Tokens {
            Tokens(self.tree.len() as u64 * self.config.block())
        }

        fn dump(&self) -> Vec<PrefixHash> {
            self.tree.slots().map(|(hash, _)| hash).collect()
        }
    };
}

pub(crate) use blocks_of_tree;

/// Creates an empty cache. `None` for the LRU family ([`crate::simulate::shared`]) and for hindsight without foresight.
pub fn build(
    spec: &PolicySpec,
    config: CacheConfig,
    foresight: Option<&Arc<Foresight>>,
) -> Option<Box<dyn BlockPolicy>> {
    let hindsight = |capped| {
        let score = Hindsight::new(Arc::clone(foresight?), config, capped);
        Some(Box::new(ScoredBlocks::new(config, score)) as Box<dyn BlockPolicy>)
    };
    Some(match spec {
        PolicySpec::FlopAware(options) => Box::new(HybridBlocks::new(config, *options)),
        PolicySpec::Gdfs(attention) => Box::new(ScoredBlocks::new(config, Frequency::new(*attention))),
        PolicySpec::WorkloadAware => Box::new(ScoredBlocks::new(config, ClassReuse::default())),
        PolicySpec::EtLru(options) => {
            let excess = Excess::new(&config, options.clone());
            Box::new(ScoredBlocks::new(config, excess))
        }
        PolicySpec::TLruPrinted => Box::new(TrimmedBlocks::new(config, Pass::OneEach)),
        PolicySpec::TLruTrimAll => Box::new(TrimmedBlocks::new(config, Pass::AllFree)),
        PolicySpec::Tiers(lower) => Box::new(TieredBlocks::new(config, lower)),
        PolicySpec::Belady => return hindsight(false),
        PolicySpec::ToBelady => return hindsight(true),
        PolicySpec::Lru
        | PolicySpec::ThresholdLru(_)
        | PolicySpec::TLru
        | PolicySpec::EndAware
        | PolicySpec::LengthAware => return None,
    })
}
