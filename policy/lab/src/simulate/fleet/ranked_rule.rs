//! The rules by which a worker ranks its blocks, other than those of the LRU family.

use std::fmt;
use std::str::FromStr;

/// A rule to rank a worker's blocks; the least is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankedRule {
    /// Furthest next turn of the trace that uses the block first (hindsight).
    Belady,
    /// Blocks that the next use does not miss under the objective, then the furthest next use (hindsight).
    ToBelady,
    /// Lowest probability of reuse first, by the turn's class, as observed by this worker.
    WorkloadAware,
    /// Greedy-Dual-Frequency-Size, with the worker's prefill cost.
    Gdfs,
}

impl RankedRule {
    pub const ALL: [Self; 4] = [Self::Belady, Self::ToBelady, Self::WorkloadAware, Self::Gdfs];

    fn name(self) -> &'static str {
        match self {
            Self::Belady => "belady",
            Self::ToBelady => "to-belady",
            Self::WorkloadAware => "workload-aware",
            Self::Gdfs => "gdfs",
        }
    }

    pub(super) fn is_hindsight(self) -> bool {
        matches!(self, Self::Belady | Self::ToBelady)
    }
}

impl fmt::Display for RankedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RankedRule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|rule| rule.name() == text).ok_or(())
    }
}
