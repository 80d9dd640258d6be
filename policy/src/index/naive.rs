//! The reference implementation of the index: one map entry per key, one set entry per holder.
//!
//! Property tests compare the index with it. It defines the semantics and is too slow for the router.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{IndexLimits, IndexStats, Reach, StoreError};
use crate::ids::{PrefixHash, WorkerId};

/// Estimated bytes of a key, so that the twin has a byte budget too.
const KEY_BYTES: u64 = 160;
const ENTRY_BYTES: u64 = 16;

#[derive(Debug)]
struct Node {
    parent: Option<PrefixHash>,
    depth: u32,
    children: BTreeSet<PrefixHash>,
    holders: BTreeSet<WorkerId>,
    /// Time of the last store or touch, deeper keys first: the minimum is always a leaf.
    used: (u64, Reverse<u32>),
}

/// The index as maps and sets.
#[derive(Debug)]
pub(super) struct NaiveIndex {
    limits: IndexLimits,
    nodes: HashMap<PrefixHash, Node>,
    by_use: BTreeMap<(u64, Reverse<u32>, PrefixHash), ()>,
    entries: HashMap<WorkerId, u64>,
    clock: u64,
    stats: IndexStats,
}

impl NaiveIndex {
    /// Creates an empty index.
    #[must_use]
    pub(super) fn new(limits: IndexLimits) -> Self {
        Self {
            limits,
            nodes: HashMap::new(),
            by_use: BTreeMap::new(),
            entries: HashMap::new(),
            clock: 0,
            stats: IndexStats::default(),
        }
    }

    /// See [`super::Index::lookup`].
    pub(super) fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        reach.begin(0);
        for (position, key) in (1u32..).zip(chain) {
            match self.nodes.get(key) {
                Some(node) if node.depth == position => {
                    node.holders
                        .iter()
                        .for_each(|worker| reach.set_one(worker.0, position));
                    reach.set_deepest(position);
                }
                _ => return,
            }
        }
    }

    /// See [`super::Index::store`], also for the errors.
    pub(super) fn store(&mut self, worker: WorkerId, chain: &[PrefixHash]) -> Result<u64, StoreError> {
        self.store_after(worker, None, chain)
    }

    /// See [`super::Index::store_after`], also for the errors.
    pub(super) fn store_after(
        &mut self,
        worker: WorkerId,
        parent: Option<PrefixHash>,
        hashes: &[PrefixHash],
    ) -> Result<u64, StoreError> {
        if worker.0 >= IndexLimits::MAX_WORKERS {
            return Err(StoreError::NoSuchWorker { worker });
        }
        let mut depth = 0;
        if let Some(parent) = parent {
            match self
                .nodes
                .get(&parent)
                .filter(|node| node.holders.contains(&worker))
            {
                Some(node) => depth = node.depth,
                None => {
                    self.stats.unknown_parents += 1;
                    return Err(StoreError::UnknownParent { worker, parent });
                }
            }
        }
        let too_long = depth as usize + hashes.len() > IndexLimits::MAX_DEPTH;
        let hashes = &hashes[..hashes.len().min(IndexLimits::MAX_DEPTH - depth as usize)];
        let (mut above, mut added, mut conflict) = (parent, 0, None);
        for key in hashes {
            depth += 1;
            if self.nodes.get(key).is_some_and(|node| node.parent != above) {
                self.stats.conflicts += 1;
                conflict = Some(*key);
                break;
            }
            added += u64::from(self.hold(worker, *key, above, depth));
            above = Some(*key);
        }
        self.touch_from(above);
        self.evict();
        match conflict {
            Some(key) => Err(StoreError::Conflict { key }),
            None if too_long => Err(StoreError::TooLong { keys: depth as usize }),
            None => Ok(added),
        }
    }

    fn hold(&mut self, worker: WorkerId, key: PrefixHash, parent: Option<PrefixHash>, depth: u32) -> bool {
        if !self.nodes.contains_key(&key) {
            let used = (self.clock, Reverse(depth));
            let node = Node {
                parent,
                depth,
                children: BTreeSet::new(),
                holders: BTreeSet::new(),
                used,
            };
            self.nodes.insert(key, node);
            self.by_use.insert((used.0, used.1, key), ());
            if let Some(above) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
                above.children.insert(key);
            }
        }
        let new = self
            .nodes
            .get_mut(&key)
            .is_some_and(|node| node.holders.insert(worker));
        *self.entries.entry(worker).or_default() += u64::from(new);
        self.stats.entries += u64::from(new);
        new
    }

    fn touch_from(&mut self, key: Option<PrefixHash>) {
        self.clock += 1;
        let mut at = key;
        while let Some(key) = at {
            let Some(node) = self.nodes.get_mut(&key) else {
                return;
            };
            self.by_use.remove(&(node.used.0, node.used.1, key));
            node.used = (self.clock, Reverse(node.depth));
            self.by_use.insert((node.used.0, node.used.1, key), ());
            at = node.parent;
        }
    }

    /// See [`super::Index::touch`].
    pub(super) fn touch(&mut self, chain: &[PrefixHash]) {
        let known = (1u32..)
            .zip(chain)
            .take_while(|(position, key)| self.nodes.get(key).is_some_and(|node| node.depth == *position));
        let last = known.last().map(|(_, key)| *key);
        self.touch_from(last);
    }

    /// See [`super::Index::remove`].
    pub(super) fn remove(&mut self, worker: WorkerId, hash: PrefixHash) -> u64 {
        if !self.holds(worker, hash) {
            self.stats.unknown_removals += 1;
            return 0;
        }
        self.release(worker, hash)
    }

    fn release(&mut self, worker: WorkerId, hash: PrefixHash) -> u64 {
        let mut lost = 0;
        let mut below = vec![hash];
        let mut visited = Vec::new();
        while let Some(key) = below.pop() {
            if let Some(node) = self
                .nodes
                .get_mut(&key)
                .filter(|node| node.holders.contains(&worker))
            {
                node.holders.remove(&worker);
                lost += 1;
                below.extend(node.children.iter().copied());
                visited.push(key);
            }
        }
        if let Some(entries) = self.entries.get_mut(&worker) {
            *entries -= lost;
        }
        self.stats.entries -= lost;
        for key in visited.into_iter().rev() {
            if self.nodes.get(&key).is_some_and(|node| node.holders.is_empty()) {
                self.drop_key(key);
            }
        }
        lost
    }

    fn drop_key(&mut self, key: PrefixHash) {
        let Some(node) = self.nodes.remove(&key) else {
            return;
        };
        self.by_use.remove(&(node.used.0, node.used.1, key));
        if let Some(parent) = node.parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children.remove(&key);
        }
    }

    /// See [`super::Index::forget`].
    pub(super) fn forget(&mut self, worker: WorkerId) -> u64 {
        let roots: Vec<PrefixHash> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.parent.is_none() && node.holders.contains(&worker))
            .map(|(key, _)| *key)
            .collect();
        let lost = roots.into_iter().map(|key| self.release(worker, key)).sum();
        self.entries.remove(&worker);
        lost
    }

    fn evict(&mut self) {
        while self.bytes() > self.limits.max_bytes {
            let Some(key) = self.by_use.first_key_value().map(|((_, _, key), ())| *key) else {
                return;
            };
            let holders = self
                .nodes
                .get(&key)
                .map(|node| node.holders.clone())
                .unwrap_or_default();
            self.stats.evicted_keys += 1;
            self.stats.evicted_entries += holders.len() as u64;
            holders.into_iter().for_each(|worker| {
                self.release(worker, key);
            });
        }
    }

    fn bytes(&self) -> u64 {
        self.nodes.len() as u64 * KEY_BYTES + self.stats.entries * ENTRY_BYTES
    }

    /// See [`super::Index::holds`].
    #[must_use]
    pub(super) fn holds(&self, worker: WorkerId, hash: PrefixHash) -> bool {
        self.nodes
            .get(&hash)
            .is_some_and(|node| node.holders.contains(&worker))
    }

    /// See [`super::Index::entries_of`].
    #[must_use]
    pub(super) fn entries_of(&self, worker: WorkerId) -> u64 {
        self.entries.get(&worker).copied().unwrap_or(0)
    }

    /// See [`super::Index::stats`]. Bytes are estimated; every key is its own run.
    #[must_use]
    pub(super) fn stats(&self) -> IndexStats {
        let keys = self.nodes.len() as u64;
        IndexStats {
            keys,
            runs: keys,
            bytes: self.bytes(),
            ..self.stats
        }
    }
}
