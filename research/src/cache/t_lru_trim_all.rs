//! T-LRU that trims every free token of every conversation once the cache overflows, even those for which there is
//! room: a possible reading of the paper's "evict for free" (its `foreach` has no exit), kept for comparison.

use super::marked::{Marked, Rule, Trim, Worth};
use super::t_lru::TelSafe;
use super::{CacheConfig, Served};

/// T-LRU that trims all free tokens on overflow.
pub type TLruTrimAll = Marked<TelSafeOnly>;

/// The rule that keeps only the tokens within the TEL-safe budget once room is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct TelSafeOnly;

impl Rule for TelSafeOnly {
    const TRIM: Trim = Trim::All;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        TelSafe.worth(config, turn)
    }
}
