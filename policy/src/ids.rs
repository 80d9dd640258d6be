//! Identifiers, each a type of its own.

use serde::{Deserialize, Serialize};

/// A worker's slot: a dense, small number, reused only after its last worker was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

/// A conversation, by the hash of the client's name for it or of the point where its prompt diverges from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConversationId(pub u64);

/// One link of a prompt's hash chain. It names the whole prefix that ends here, not only its last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixHash(pub u64);

impl WorkerId {
    /// Returns the slot as an index into per-worker arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
