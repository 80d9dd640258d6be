//! The reference implementation: no lists and no counts; every answer comes from a scan of all nodes.

use std::collections::BTreeMap;

use super::{Change, Keep, Order, Piece, Standing};
use crate::ids::PrefixHash;

#[derive(Clone, Debug)]
struct Node {
    parent: Option<PrefixHash>,
    tokens: u64,
    pins: u32,
    marked: bool,
    /// Tick of the last release.
    released: u64,
    evict_first: Option<u64>,
    /// Tick of entering the evict-first band, kept while the node is held again; also set when part of the node was
    /// marked.
    entered: Option<u64>,
    round: u64,
    stored: u64,
    uses: u64,
    ran: bool,
}

#[derive(Debug)]
pub(super) struct NaiveLease {
    held: Vec<PrefixHash>,
    pub(super) hits: usize,
    cut: bool,
    epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct NaiveCache {
    pub(super) capacity: u64,
    pub(super) order: Order,
    stores: u64,
    nodes: BTreeMap<PrefixHash, Node>,
    tick: u64,
    round: u64,
    epoch: u64,
}

impl NaiveCache {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.nodes.values().map(|node| node.tokens).sum()
    }

    pub(super) fn pinned(&self) -> u64 {
        self.nodes
            .values()
            .filter(|node| node.pins > 0)
            .map(|node| node.tokens)
            .sum()
    }

    pub(super) fn evict_first(&self) -> u64 {
        self.nodes
            .values()
            .filter(|node| node.evict_first.is_some())
            .map(|node| node.tokens)
            .sum()
    }

    pub(super) fn resident(&self, chain: &[PrefixHash]) -> usize {
        let mut parent = None;
        let mut count = 0;
        for hash in chain {
            match self.nodes.get(hash) {
                Some(node) if node.parent == parent => count += 1,
                _ => break,
            }
            parent = Some(*hash);
        }
        count
    }

    pub(super) fn acquire(&mut self, chain: &[Piece], changes: &mut Vec<Change>) -> NaiveLease {
        let hashes: Vec<PrefixHash> = chain.iter().map(|piece| piece.hash).collect();
        let hits = self.resident(&hashes);
        let mut lease = NaiveLease {
            held: Vec::new(),
            hits,
            cut: false,
            epoch: self.epoch,
        };
        self.extend(&mut lease, chain, changes);
        lease
    }

    pub(super) fn extend(
        &mut self,
        lease: &mut NaiveLease,
        pieces: &[Piece],
        changes: &mut Vec<Change>,
    ) -> usize {
        if lease.cut || lease.epoch != self.epoch {
            lease.cut = true;
            return 0;
        }
        let before = lease.held.len();
        for piece in pieces {
            let parent = lease.held.last().copied();
            let tokens = u64::from(piece.tokens);
            let room = self.pinned() + tokens <= self.capacity;
            match self.nodes.get_mut(&piece.hash) {
                Some(node) if node.parent == parent => {
                    node.pins += 1;
                    node.uses += 1;
                    node.marked = false;
                    node.evict_first = None;
                }
                Some(_) => lease.cut = true,
                None if !room => lease.cut = true,
                None => {
                    while self.used() + tokens > self.capacity {
                        self.evict(changes);
                    }
                    let node = Node {
                        parent,
                        tokens,
                        pins: 1,
                        marked: false,
                        released: 0,
                        evict_first: None,
                        entered: None,
                        round: 0,
                        stored: self.stores,
                        uses: 1,
                        ran: false,
                    };
                    self.stores += 1;
                    self.nodes.insert(piece.hash, node);
                    changes.push(Change::Stored {
                        hash: piece.hash,
                        parent,
                    });
                }
            }
            if lease.cut {
                break;
            }
            lease.held.push(piece.hash);
        }
        lease.held.len() - before
    }

    pub(super) fn reweigh(&mut self, lease: &NaiveLease, pieces: &[Piece], changes: &mut Vec<Change>) {
        if lease.epoch == self.epoch {
            for (hash, piece) in lease.held.iter().zip(pieces) {
                if let Some(node) = self.nodes.get_mut(hash) {
                    node.tokens = u64::from(piece.tokens);
                }
            }
            while self.used() > self.capacity && !self.eviction_order().is_empty() {
                self.evict(changes);
            }
        }
    }

    pub(super) fn release(&mut self, lease: &NaiveLease, keep: Keep, changes: &mut Vec<Change>) {
        if lease.epoch != self.epoch {
            return;
        }
        self.round += 1;
        let round = self.round;
        let mut start = 0;
        let starts: Vec<u64> = lease
            .held
            .iter()
            .map(|hash| {
                let here = start;
                start += self.nodes[hash].tokens;
                here
            })
            .collect();
        for (hash, start) in lease.held.iter().zip(starts).rev() {
            self.tick += 1;
            let tick = self.tick;
            let node = self.nodes.get_mut(hash).unwrap();
            node.pins -= 1;
            node.ran = true;
            if node.pins == 0 {
                node.released = tick;
                node.round = round;
                node.marked = matches!(keep, Keep::First(budget) if start >= budget.0);
                let in_part =
                    matches!(keep, Keep::First(budget) if start < budget.0 && budget.0 < start + node.tokens);
                node.entered = in_part.then_some(tick);
            }
            self.settle();
        }
        while self.used() > self.capacity && !self.eviction_order().is_empty() {
            self.evict(changes);
        }
    }

    pub(super) fn withdraw(&mut self, lease: &NaiveLease, changes: &mut Vec<Change>) {
        if lease.epoch != self.epoch {
            return;
        }
        self.round += 1;
        for &hash in lease.held.iter().rev() {
            self.tick += 1;
            let node = self.nodes.get_mut(&hash).unwrap();
            node.pins -= 1;
            if node.pins == 0 {
                (node.released, node.round, node.entered) = (self.tick, self.round, None);
                if !node.ran {
                    self.nodes.remove(&hash);
                    changes.push(Change::Removed { hash });
                }
            }
            self.settle();
        }
        while self.used() > self.capacity && !self.eviction_order().is_empty() {
            self.evict(changes);
        }
    }

    pub(super) fn rewind(&mut self, lease: &mut NaiveLease, to: Option<PrefixHash>) {
        if lease.epoch != self.epoch || to.is_some_and(|to| !lease.held.contains(&to)) {
            return;
        }
        while lease.held.last().copied() != to {
            let Some(hash) = lease.held.pop() else { return };
            let node = self.nodes.get_mut(&hash).unwrap();
            node.pins -= 1;
            if node.pins == 0 {
                self.remove(hash);
            }
        }
    }

    pub(super) fn by_recency(&self) -> Vec<PrefixHash> {
        let mut order: Vec<_> = self.nodes.iter().filter(|(_, node)| node.pins == 0).collect();
        order.sort_by_key(|(_, node)| {
            let marked = node.evict_first;
            (marked.is_none(), marked.unwrap_or(node.released))
        });
        order.into_iter().map(|(hash, _)| *hash).collect()
    }

    pub(super) fn held(&self) -> Vec<(PrefixHash, Option<PrefixHash>)> {
        let depth =
            |hash: PrefixHash| std::iter::successors(Some(hash), |hash| self.nodes[hash].parent).count();
        let mut held: Vec<_> = self.nodes.iter().filter(|(_, node)| node.pins > 0).collect();
        held.sort_by_key(|&(&hash, _)| (std::cmp::Reverse(depth(hash)), hash));
        held.into_iter()
            .map(|(&hash, node)| (hash, node.parent))
            .collect()
    }

    pub(super) fn mark(&mut self, hash: PrefixHash) {
        if let Some(node) = self.nodes.get_mut(&hash).filter(|node| node.pins == 0) {
            node.marked = true;
        }
        self.settle();
    }

    pub(super) fn remove(&mut self, hash: PrefixHash) {
        for child in self.children(hash) {
            self.remove(child);
        }
        if self.nodes.get(&hash).is_some_and(|node| node.pins == 0) {
            self.nodes.remove(&hash);
            self.settle();
        }
    }

    pub(super) fn stored_again(&mut self, hash: PrefixHash) {
        self.remove(hash);
        if !self.nodes.contains_key(&hash) {
            return;
        }
        let mut below = vec![hash];
        while let Some(&next) = below
            .iter()
            .find(|&&at| self.children(at).iter().any(|child| !below.contains(child)))
        {
            below.extend(self.children(next));
        }
        below.sort_by_key(|hash| self.nodes[hash].stored);
        for hash in below {
            let node = self.nodes.get_mut(&hash).unwrap();
            node.stored = self.stores;
            node.uses = 1;
            self.stores += 1;
        }
    }

    pub(super) fn computed_anew(&mut self, chain: &[Piece]) {
        for piece in chain {
            match self.nodes.get_mut(&piece.hash) {
                Some(node) if node.pins > 0 => node.round = self.round + 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    pub(super) fn standing(&self, hash: PrefixHash) -> Option<Standing> {
        self.nodes.get(&hash).map(|node| Standing {
            released: node.round,
            marked: node.entered,
        })
    }

    pub(super) fn drop_older(&mut self, than: Standing, changes: &mut Vec<Change>) {
        for hash in self.by_recency() {
            let node = &self.nodes[&hash];
            let went_first = match (than.marked, node.evict_first) {
                (None, _) => true,
                (Some(marked), entered) => entered.is_some_and(|entered| entered < marked),
            };
            if node.round < than.released && went_first {
                self.nodes.remove(&hash);
                changes.push(Change::Removed { hash });
                self.settle();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.stores = 0;
        self.round = 0;
        self.epoch += 1;
    }

    pub(super) fn set_capacity(&mut self, capacity: u64, changes: &mut Vec<Change>) {
        self.capacity = capacity;
        while self.used() > self.capacity && !self.eviction_order().is_empty() {
            self.evict(changes);
        }
    }

    /// Returns the marked pieces in the order of marking, then repeatedly the first childless one of the rest.
    pub(super) fn eviction_order(&self) -> Vec<PrefixHash> {
        let (mut marked, mut rest): (Vec<_>, Vec<_>) = self
            .nodes
            .iter()
            .filter(|(_, node)| node.pins == 0)
            .partition(|(_, node)| node.evict_first.is_some());
        marked.sort_by_key(|(_, node)| node.evict_first);
        let mut order: Vec<PrefixHash> = marked.into_iter().map(|(hash, _)| *hash).collect();
        while !rest.is_empty() {
            let is_parent = |hash: PrefixHash| rest.iter().any(|(_, node)| node.parent == Some(hash));
            let first = (0..rest.len())
                .filter(|&at| !is_parent(*rest[at].0))
                .min_by_key(|&at| self.rank(rest[at].1));
            order.push(*rest.remove(first.unwrap()).0);
        }
        order
    }

    fn rank(&self, node: &Node) -> (u64, i64) {
        let (used, stored) = (node.released as i64, node.stored as i64);
        match self.order {
            Order::Lru => (0, used),
            Order::Lfu => (node.uses, used),
            Order::Slru => (node.uses.min(2), used),
            Order::Fifo => (0, stored),
            Order::Mru => (0, -used),
            Order::Filo => (0, -stored),
        }
    }

    fn children(&self, hash: PrefixHash) -> Vec<PrefixHash> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.parent == Some(hash))
            .map(|(hash, _)| *hash)
            .collect()
    }

    fn evict(&mut self, changes: &mut Vec<Change>) {
        let hash = self.eviction_order()[0];
        assert!(
            self.children(hash).is_empty(),
            "a parent would go before its child"
        );
        self.nodes.remove(&hash);
        changes.push(Change::Removed { hash });
        self.settle();
    }

    /// Moves marked nodes whose children are all evict-first into the band.
    fn settle(&mut self) {
        loop {
            let ready = self.nodes.iter().find(|(hash, node)| {
                node.marked
                    && node.pins == 0
                    && node.evict_first.is_none()
                    && self
                        .children(**hash)
                        .iter()
                        .all(|child| self.nodes[child].evict_first.is_some())
            });
            let Some(hash) = ready.map(|(hash, _)| *hash) else {
                return;
            };
            self.tick += 1;
            let tick = self.tick;
            if let Some(node) = self.nodes.get_mut(&hash) {
                node.evict_first = Some(tick);
                node.entered = Some(tick);
            }
        }
    }
}
