//! The prefix-closed tree of resident blocks, without their values.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use policy::ids::PrefixHash;

/// A block's number. Stable while it is resident.
pub(super) type SlotId = u32;

/// Key of a block in the order of eviction: age, depth. The least goes first.
pub(super) type Key = (u64, Reverse<u32>, SlotId);

const NONE: SlotId = SlotId::MAX;

#[derive(Clone, Debug)]
struct Node {
    hash: PrefixHash,
    parent: SlotId,
    children: u32,
    depth: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    by_hash: FxHashMap<PrefixHash, SlotId>,
    nodes: Vec<Node>,
    vacant: Vec<SlotId>,
}

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub(super) fn walk(&self, chain: &[PrefixHash]) -> impl Iterator<Item = SlotId> {
        let mut parent = NONE;
        chain.iter().map_while(move |hash| {
            let slot = *self.by_hash.get(hash)?;
            let follows = self.nodes[slot as usize].parent == parent;
            parent = slot;
            follows.then_some(slot)
        })
    }

    /// Makes the rest of a chain resident below `path`, its resident prefix, up to a block that is resident elsewhere.
    pub(super) fn grow(&mut self, path: &mut Vec<SlotId>, chain: &[PrefixHash]) {
        for &hash in &chain[path.len()..] {
            if self.by_hash.contains_key(&hash) {
                return;
            }
            path.push(self.push(path, hash));
        }
    }

    pub(super) fn push(&mut self, path: &[SlotId], hash: PrefixHash) -> SlotId {
        let parent = path.last().copied();
        if let Some(parent) = parent {
            self.nodes[parent as usize].children += 1;
        }
        let node = Node {
            hash,
            parent: parent.unwrap_or(NONE),
            children: 0,
            depth: path.len() as u32,
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as SlotId
            }
        };
        self.by_hash.insert(hash, slot);
        slot
    }

    pub(super) fn find(&self, hash: PrefixHash) -> Option<SlotId> {
        self.by_hash.get(&hash).copied()
    }

    pub(super) fn hash(&self, slot: SlotId) -> PrefixHash {
        self.nodes[slot as usize].hash
    }

    pub(super) fn prune(&mut self, leaf: SlotId) -> Option<SlotId> {
        debug_assert!(self.is_leaf(leaf), "a block goes after what hangs below it");
        let Node { hash, parent, .. } = self.nodes[leaf as usize];
        self.by_hash.remove(&hash);
        self.vacant.push(leaf);
        if parent == NONE {
            return None;
        }
        self.nodes[parent as usize].children -= 1;
        Some(parent)
    }

    pub(super) fn parent(&self, slot: SlotId) -> Option<SlotId> {
        let parent = self.nodes[slot as usize].parent;
        (parent != NONE).then_some(parent)
    }

    pub(super) fn children(&self, slot: SlotId) -> u32 {
        self.nodes[slot as usize].children
    }

    pub(super) fn is_leaf(&self, slot: SlotId) -> bool {
        self.children(slot) == 0
    }

    pub(super) fn depth(&self, slot: SlotId) -> u32 {
        self.nodes[slot as usize].depth
    }

    /// Returns the key of a block that turn number `served` was the last to use.
    pub(super) fn key(&self, served: u64, slot: SlotId) -> Key {
        (served, Reverse(self.depth(slot)), slot)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (PrefixHash, SlotId)> {
        self.by_hash.iter().map(|(hash, slot)| (*hash, *slot))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.len() + self.vacant.len() != self.nodes.len() {
            return Err(format!(
                "{} resident, {} vacant, {} slots",
                self.len(),
                self.vacant.len(),
                self.nodes.len()
            ));
        }
        let mut children = vec![0; self.nodes.len()];
        for (hash, slot) in self.slots() {
            let node = &self.nodes[slot as usize];
            let above = (node.parent != NONE).then(|| &self.nodes[node.parent as usize]);
            let stands = above.is_none_or(|parent| self.by_hash.get(&parent.hash) == Some(&node.parent));
            let depth = above.map_or(0, |parent| parent.depth + 1);
            if node.hash != hash || !stands || depth != node.depth {
                return Err(format!("block {} hangs in the air", hash.0));
            }
            if above.is_some() {
                children[node.parent as usize] += 1;
            }
        }
        match self
            .slots()
            .find(|(_, slot)| children[*slot as usize] != self.children(*slot))
        {
            Some((hash, _)) => Err(format!("block {} miscounts its children", hash.0)),
            None => Ok(()),
        }
    }
}
