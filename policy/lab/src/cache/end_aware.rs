//! End-Aware T-LRU: told whether a conversation continues, it drops the ended ones whole (paper, appendix G.1).
//!
//! The most valuable bit that a client can give: `ended`. Under forced caching an ended conversation stays whole for its
//! last turn, and goes with the next turn of another.

use super::marked::{Marked, Rule, Trim, Worth};
use super::t_lru::TelSafe;
use super::{CacheConfig, Future, Served};

/// T-LRU that knows ends.
pub type EndAware = Marked<TelSafeUntilEnd>;

/// The TEL-safe budget, and nothing of a conversation that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct TelSafeUntilEnd;

impl Rule for TelSafeUntilEnd {
    const TRIM: Trim = Trim::Needed;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        match turn.future {
            Future::Last => Worth::Nothing,
            Future::Unknown | Future::Next { .. } => TelSafe.worth(config, turn),
        }
    }
}
