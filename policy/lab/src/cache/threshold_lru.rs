//! LRU that does not keep short conversations: kept iff `L ≥ threshold` after the turn.
//!
//! The rule of a large provider's API (1,024 tokens), and the paper's second baseline. All or nothing: a conversation of
//! 1,023 tokens is recomputed whole, one of 1,024 is kept whole.
//!
//! The paper leaves open what becomes of a short conversation's older cache: there is none, since it was shorter then.
//! Under forced caching nothing may be refused, and this is LRU.

use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Served};
use policy::units::Tokens;

/// LRU for conversations from a threshold on.
pub type ThresholdLru = Marked<LongEnough>;

/// Conversations of this many tokens on are worth keeping.
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
