//! Least recently used: the conversation whose last turn is longest ago gives its last tokens first.
//!
//! Optimal for the mean when every conversation returns at the same rate and dies at the same rate (paper, §4: T-LRU
//! at ξ = 0), and blind to length: a turn that would miss its objective by seconds loses its cache like any other.
//!
//! Evicting from the end of the oldest conversation until the cache fits, rather than dropping it whole, is what block
//! caches do: one conversation at most is partly resident. Caching is optional or forced alike, since the youngest is
//! always the last to go.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};

/// Least recently used.
pub type Lru = Marked<KeepAll>;

/// Everything is worth keeping.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rule for KeepAll {
    const TRIM: Trim = Trim::Never;

    fn worth(&self, _: &CacheConfig, _: &Served) -> Worth {
        Worth::All
    }
}
