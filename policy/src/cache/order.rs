//! The order in which a cache evicts unmarked pieces: the engine's policy.
//!
//! A radix cache computes a number for each node and evicts the childless node with the smallest. SGLang's
//! `--radix-eviction-policy` names the policies below (`mem_cache/evict_policy.py`). A piece's *uses* are the sequences
//! that held it, including the one that stored it. vLLM's list of free blocks is [`Order::Lru`], in which children come
//! before parents by themselves. Other orders keep the ends of chains sorted, at O(log n) each.

/// Eviction order of unmarked pieces. Each variant says what is evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Least recently used.
    #[default]
    Lru,
    /// Least frequently used, then least recently.
    Lfu,
    /// Pieces used once, then the rest; by least recent use within each.
    Slru,
    /// First stored.
    Fifo,
    /// Most recently used.
    Mru,
    /// Last stored.
    Filo,
}

/// Uses from which [`Order::Slru`] protects a piece.
const PROTECTED: u32 = 2;

impl Order {
    /// All orders.
    pub const ALL: [Self; 6] = [
        Self::Lru,
        Self::Lfu,
        Self::Slru,
        Self::Fifo,
        Self::Mru,
        Self::Filo,
    ];

    /// Returns the name that engines use.
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

    /// Returns the order of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.as_str() == name)
    }

    /// Returns the rank of a piece; the smallest is evicted first. `stored` and `used` are store and release counts.
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
