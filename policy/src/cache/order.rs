//! In which order a cache drops what nothing has marked: an engine's own policy.
//!
//! A radix cache keeps a number for each node and drops, of the nodes that nothing hangs below, the one with the smallest.
//! SGLang's `--radix-eviction-policy` names the numbers below (`mem_cache/evict_policy.py`). A piece's *uses* are the
//! sequences that held it, the one that stored it included. vLLM's list of free blocks is [`Order::Lru`], and so is every
//! policy that first drops what it has marked: marks are a band of their own.
//!
//! Under [`Order::Lru`] the numbers never have to be compared, because whoever uses a piece uses all before it: the list of
//! the least recently used has children before parents by itself. Elsewhere an old piece may stand before a young one
//! that must go first, so the pieces at the ends of chains are kept sorted, at O(log n) for each.

/// What goes first of what is not marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The least recently used.
    #[default]
    Lru,
    /// The least often used, then the least recently.
    Lfu,
    /// What was used once, then the rest; the least recently used first in each.
    Slru,
    /// What was stored first.
    Fifo,
    /// The most recently used.
    Mru,
    /// What was stored last.
    Filo,
}

/// Uses from which [`Order::Slru`] protects a piece.
const PROTECTED: u32 = 2;

impl Order {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Lru,
        Self::Lfu,
        Self::Slru,
        Self::Fifo,
        Self::Mru,
        Self::Filo,
    ];

    /// Its name, as engines spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Slru => "slru",
            Self::Fifo => "fifo",
            Self::Mru => "mru",
            Self::Filo => "filo",
        }
    }

    /// The order of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.as_str() == name)
    }

    /// The smallest goes first. `stored` and `used` count stores and releases so far.
    pub(super) fn rank(self, uses: u32, stored: u64, used: u64) -> (u64, u64) {
        match self {
            Self::Lru => (0, used),
            Self::Lfu => (uses.into(), used),
            Self::Slru => (u64::from(uses >= PROTECTED), used),
            Self::Fifo => (0, stored),
            Self::Mru => (0, u64::MAX - used),
            Self::Filo => (0, u64::MAX - stored),
        }
    }
}
