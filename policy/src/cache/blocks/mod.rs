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

pub mod hybrid;
#[cfg(test)]
mod naive;
pub mod scored;
mod scores;
#[cfg(test)]
mod tests;
mod tree;

use self::hybrid::HybridBlocks;
use self::scored::ScoredBlocks;
use self::scores::{ClassReuse, Excess, Frequency};
use super::{CacheConfig, PolicySpec, Served};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// A cache of shared blocks under one policy.
pub trait BlockPolicy {
    /// Tokens of a chain that need no prefill now.
    fn cached(&self, chain: &[PrefixHash]) -> Tokens;

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

/// An empty cache of shared blocks under this policy. `None` for one that does not rank blocks.
#[must_use]
pub fn build(spec: &PolicySpec, config: CacheConfig) -> Option<Box<dyn BlockPolicy>> {
    match spec {
        PolicySpec::FlopAware(options) => Some(Box::new(HybridBlocks::new(config, *options))),
        PolicySpec::Gdfs(attention) => Some(Box::new(ScoredBlocks::new(config, Frequency::new(*attention)))),
        PolicySpec::WorkloadAware => Some(Box::new(ScoredBlocks::new(config, ClassReuse::default()))),
        PolicySpec::EtLru(options) => {
            let excess = Excess::new(&config, options.clone());
            Some(Box::new(ScoredBlocks::new(config, excess)))
        }
        _ => None,
    }
}
