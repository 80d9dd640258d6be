//! LRU that does not keep short conversations: one is kept iff `L ≥ threshold` after the turn.
//!
//! The rule of a large provider's API (1,024 tokens), and the paper's second baseline. A short conversation has no
//! older cache, since it was shorter then. Under forced caching nothing may be refused, and this is LRU.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};
use policy::units::Tokens;

/// LRU for conversations of a minimum length.
pub type ThresholdLru = Marked<LongEnough>;

/// The rule that keeps conversations of at least this many tokens.
#[derive(Clone, Copy, Debug)]
pub struct LongEnough(pub Tokens);

impl Rule for LongEnough {
    const TRIM: Trim = Trim::Never;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        if !config.forced && turn.length < self.0 {
            Worth::Nothing
        } else {
            Worth::All
        }
    }
}
