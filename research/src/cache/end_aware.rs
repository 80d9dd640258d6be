//! End-Aware T-LRU: with foresight of last turns, drops ended conversations whole (paper, appendix G.1). Under forced
//! caching one stays whole for its last turn, and is dropped at the next turn of another.

use super::marked::{Marked, Rule, Trim, Worth};
use super::t_lru::TelSafe;
use super::{CacheConfig, Future, Served};

/// T-LRU with foresight of last turns.
pub type EndAware = Marked<TelSafeUntilEnd>;

/// The TEL-safe budget; zero for a conversation that has ended.
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
