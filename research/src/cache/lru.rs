//! Least recently used: the conversation whose last turn is longest ago loses its last tokens first.
//!
//! Optimal for the mean when every conversation returns and dies at the same rate (paper, §4: T-LRU at ξ = 0), but
//! independent of length: a turn that would miss its objective by seconds loses its cache like any other. At most one
//! conversation is partly resident. Optional and forced caching agree, since the youngest is evicted last.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};

/// Least recently used.
pub type Lru = Marked<KeepAll>;

/// The rule that keeps the whole conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Rule for KeepAll {
    const TRIM: Trim = Trim::Never;

    fn worth(&self, _: &CacheConfig, _: &Served) -> Worth {
        Worth::All
    }
}
