//! Identities. Each is a number that must not be mistaken for another.

use serde::{Deserialize, Serialize};

/// A worker's slot: dense, small, reused only after its last holder was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

/// A conversation, by the client's own name for it (hashed) or by where its prompt leaves every other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConversationId(pub u64);

/// One link of a prompt's hash chain: names the whole prefix that ends here, not only its last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixHash(pub u64);

impl WorkerId {
    /// The slot as an index into per-worker arrays.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
