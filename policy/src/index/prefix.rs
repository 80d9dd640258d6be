//! A prefix as somebody who looks at the index sees it.

use crate::ids::{PrefixHash, WorkerId};

/// Where known prefixes end or part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Its last key, which names it.
    pub last: PrefixHash,
    /// Its keys.
    pub keys: u32,
    /// In how many ways known prefixes go on from it; 0 where one ends.
    pub forks: u32,
    /// Workers that hold any of its last run.
    pub holders: u32,
    /// Copies of it, complete ones first: as many as were asked for.
    pub copies: Vec<Copy>,
}

/// What one worker holds of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The worker.
    pub worker: WorkerId,
    /// Leading keys that it holds.
    pub keys: u32,
    /// The last of them.
    pub last: PrefixHash,
}
