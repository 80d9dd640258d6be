//! Length-Aware T-LRU: End-Aware with the true next prompt length, so that budgets are exact (paper, appendix G.1). The
//! difference to [`super::end_aware`] is the potential gain of predicting lengths, which is small; that to
//! [`super::to_belady`] is the gain of knowing the order.

use super::end_aware::TelSafeUntilEnd;
use super::marked::{Marked, Rule, Trim, Worth};
use super::{CacheConfig, Future, Served};
use policy::units::Tokens;

/// T-LRU with foresight of last turns and of next prompt lengths.
pub type LengthAware = Marked<TelSafeExactly>;

/// The TEL-safe budget with the true next prompt; zero for a conversation that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct TelSafeExactly;

impl Rule for TelSafeExactly {
    const TRIM: Trim = Trim::Needed;

    fn worth(&self, config: &CacheConfig, turn: &Served) -> Worth {
        match turn.future {
            Future::Next { prompt, .. } => Worth::First(Tokens(config.budget(turn.length, prompt))),
            Future::Last | Future::Unknown => TelSafeUntilEnd.worth(config, turn),
        }
    }
}
