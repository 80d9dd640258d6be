//! The map from pieces to slots.
//!
//! A hash table of slots, a third the size of a map with hashes: a lookup reads the node's hash next anyway.

use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use super::Node;
use crate::ids::PrefixHash;

#[derive(Debug, Default)]
pub(super) struct Names(HashTable<u32>);

/// Returns the table's hash of a piece, since piece hashes from external chains may be small numbers.
fn spread(hash: PrefixHash) -> u64 {
    FxBuildHasher.hash_one(hash)
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn find(&self, nodes: &[Node], hash: PrefixHash) -> Option<u32> {
        let is_it = |&slot: &u32| nodes[slot as usize].hash == hash;
        self.0.find(spread(hash), is_it).copied()
    }

    pub(super) fn insert(&mut self, nodes: &[Node], slot: u32) {
        let spread_of = |&slot: &u32| spread(nodes[slot as usize].hash);
        self.0.insert_unique(spread_of(&slot), slot, spread_of);
    }

    pub(super) fn remove(&mut self, hash: PrefixHash, slot: u32) {
        let found = self.0.find_entry(spread(hash), |&other| other == slot);
        debug_assert!(found.is_ok(), "it has no name");
        if let Ok(found) = found {
            found.remove();
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}
