//! A prefix in the index, for display.

use crate::ids::{PrefixHash, WorkerId};

/// A point where known prefixes end or branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The last key, which names the prefix.
    pub last: PrefixHash,
    /// Number of keys.
    pub keys: u32,
    /// Number of known continuations; 0 at an end.
    pub forks: u32,
    /// Number of workers that hold any of the prefix's last run.
    pub holders: u32,
    /// The workers' copies, complete ones first, up to the requested number.
    pub copies: Vec<Copy>,
}

/// One worker's copy of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The worker that holds the copy.
    pub worker: WorkerId,
    /// Number of leading keys held.
    pub keys: u32,
    /// The last key held.
    pub last: PrefixHash,
}
