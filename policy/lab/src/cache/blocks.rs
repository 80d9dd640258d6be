//! The policies that rank their contents, on hash blocks that conversations share.
//!
//! [`super::prefix`] can be told how much of a finished chain is worth keeping, which is all that the LRU family needs.
//! The policies here compare blocks of different chains with each other: a tree of blocks, prefix-closed, whose
//! evictable ones (leaves, or a hybrid model's states) stand in an ordered set.
//!
//! A turn's blocks become resident, all of them are touched, and the least of the evictable ones go until the cache
//! fits; what was just served competes with the others, as under optional caching of private conversations.
//!
//! - *The last turn decides* what a block that several conversations use is worth, as it does in [`super::prefix`].
//!   The sum over all of them would need each of their returns to be seen, and their ends never are.
//! - A block's worth counts only once nothing hangs below it: a shared one is kept by whatever branches off it.
//! - *Hindsight is about blocks*, not conversations: who asks for a block next may be anybody ([`foresight`]).

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
    /// Tokens of a chain that need no prefill now.
    fn cached(&self, chain: &[PrefixHash]) -> Tokens;

    /// Time to bring the resident blocks of a chain to where prefill can use them. Nothing but in a tier stack.
    fn load_time(&self, chain: &[PrefixHash]) -> Millis {
        let _ = chain;
        Millis::ZERO
    }

    /// A turn was served whose full blocks are `chain`. Make room.
    fn served(&mut self, chain: &[PrefixHash], turn: &Served);

    /// Tokens resident in all.
    fn used(&self) -> Tokens;

    /// Resident blocks, in no particular order.
    fn dump(&self) -> Vec<PrefixHash>;

    /// What must hold between calls.
    ///
    /// # Errors
    /// The first invariant found broken, in words.
    fn check(&self) -> Result<(), String>;
}

/// An empty cache of shared blocks under this policy. `None` for the LRU family, which runs in [`super::prefix`], and for
/// a hindsight policy without foresight.
#[must_use]
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
