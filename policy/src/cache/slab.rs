//! The nodes, their family links and the two eviction lists, as indices into one vector.
//!
//! Invariant: *an unpinned node comes after all its children in the order of eviction*. So a node may enter the
//! evict-first band only when all its children are in it; `blockers` counts those that are not.

mod ends;
mod invariants;
mod names;

use std::collections::BTreeSet;

use self::names::Names;
use super::order::Order;
use crate::ids::PrefixHash;

pub(super) const NONE: u32 = u32::MAX;

fn present(slot: u32) -> Option<u32> {
    (slot != NONE).then_some(slot)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Band {
    /// Neither band: the node is held by a lease, or its slot is free.
    Held,
    EvictFirst,
    /// Evicted when the evict-first band is empty.
    Lru,
}

/// A node, as large as a cache line of the processor, since the nodes of a large cache do not fit in the processor's.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) hash: PrefixHash,
    pub(super) tokens: u32,
    pub(super) parent: u32,
    pub(super) pins: u32,
    band: Band,
    marked: bool,
    /// Whether a sequence that held the node was released, so that its tokens were computed.
    pub(super) ran: bool,
    /// Number of children outside the evict-first band.
    blockers: u32,
    /// Number of the node's last release; 0 before the first.
    released: u64,
    /// Number of the node's entry into the evict-first band since that release, kept while it is held again; 0 without
    /// one.
    entered: u64,
    first_child: u32,
    older_sibling: u32,
    younger_sibling: u32,
    before: u32,
    after: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

#[derive(Clone, Copy, Debug)]
struct History {
    stored: u64,
    uses: u32,
}

/// A doubly linked list through [`Node::before`] and [`Node::after`]; the front is evicted first.
#[derive(Clone, Copy, Debug)]
struct List {
    front: u32,
    back: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            front: NONE,
            back: NONE,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Nodes {
    slots: Vec<Node>,
    names: Names,
    histories: Vec<History>,
    free: Vec<u32>,
    evict_first: List,
    lru: List,
    evict_first_tokens: u64,
    releases: u64,
    stores: u64,
    order: Order,
    /// The childless nodes of the LRU list, in the order of eviction. Empty under [`Order::Lru`].
    ends: BTreeSet<Ranked>,
    entries: u64,
}

/// A node's rank in an [`Order`], and its slot.
type Ranked = ((u64, u64), u32);

impl Nodes {
    pub(super) fn get(&self, slot: u32) -> &Node {
        &self.slots[slot as usize]
    }

    fn at(&mut self, slot: u32) -> &mut Node {
        &mut self.slots[slot as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn find(&self, hash: PrefixHash) -> Option<u32> {
        self.names.find(&self.slots, hash)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.names.slots()
    }

    pub(super) fn evict_first_tokens(&self) -> u64 {
        self.evict_first_tokens
    }

    pub(super) fn next_victim(&self) -> Option<u32> {
        let marked = present(self.evict_first.front);
        marked.or_else(|| match self.order {
            Order::Lru => present(self.lru.front),
            _ => self.ends.first().map(|&(_, slot)| slot),
        })
    }

    /// Inserts a node with one pin as the youngest child of `parent`, which must be pinned too. The piece must be new.
    pub(super) fn insert_pinned(&mut self, hash: PrefixHash, tokens: u32, parent: u32) -> u32 {
        let older_sibling = if parent == NONE {
            NONE
        } else {
            self.get(parent).first_child
        };
        let node = Node {
            hash,
            tokens,
            parent,
            pins: 1,
            band: Band::Held,
            marked: false,
            ran: false,
            blockers: 0,
            released: 0,
            entered: 0,
            first_child: NONE,
            older_sibling,
            younger_sibling: NONE,
            before: NONE,
            after: NONE,
        };
        let history = History {
            stored: self.stores,
            uses: 1,
        };
        self.stores += 1;
        let slot = if let Some(slot) = self.free.pop() {
            *self.at(slot) = node;
            self.histories[slot as usize] = history;
            slot
        } else {
            self.slots.push(node);
            self.histories.push(history);
            (self.slots.len() - 1) as u32
        };
        self.names.insert(&self.slots, slot);
        if parent != NONE {
            let parent = self.at(parent);
            parent.first_child = slot;
            parent.blockers += 1;
        }
        if older_sibling != NONE {
            self.at(older_sibling).younger_sibling = slot;
        }
        slot
    }

    pub(super) fn reweigh(&mut self, slot: u32, tokens: u32) {
        debug_assert_eq!(self.get(slot).band, Band::Held, "its band would count it wrongly");
        self.at(slot).tokens = tokens;
    }

    /// Adds a pin and clears the mark. Returns whether the node was unpinned before.
    pub(super) fn pin(&mut self, slot: u32) -> bool {
        let first = self.get(slot).pins == 0;
        if first {
            self.leave_band(slot);
        }
        let node = self.at(slot);
        node.pins += 1;
        node.marked = false;
        let uses = &mut self.histories[slot as usize].uses;
        *uses = uses.saturating_add(1);
        first
    }

    pub(super) fn begin_release(&mut self) {
        self.releases += 1;
    }

    pub(super) fn releases(&self) -> u64 {
        self.releases
    }

    /// Counts a held node as released next.
    pub(super) fn computed_anew(&mut self, slot: u32) {
        let next = self.releases + 1;
        let node = self.at(slot);
        if node.pins > 0 {
            node.released = next;
        }
    }

    pub(super) fn released(&self, slot: u32) -> u64 {
        self.get(slot).released
    }

    pub(super) fn entered(&self, slot: u32) -> u64 {
        self.get(slot).entered
    }

    /// Records that part of an unpinned node was marked: it stays in its list, but a worker may lack that part.
    pub(super) fn mark_in_part(&mut self, slot: u32) {
        let next = self.entries + 1;
        let node = self.at(slot);
        if node.pins == 0 && node.entered == 0 {
            node.entered = next;
        }
    }

    pub(super) fn mark_computed(&mut self, slot: u32) {
        self.at(slot).ran = true;
    }

    /// Removes a pin; the last one decides the mark and the band. Returns whether it was. Children are unpinned first.
    pub(super) fn unpin(&mut self, slot: u32, mark: bool) -> bool {
        let releases = self.releases;
        let node = self.at(slot);
        node.pins -= 1;
        if node.pins > 0 {
            return false;
        }
        node.released = releases;
        node.entered = 0;
        node.marked = mark;
        if mark && node.blockers == 0 {
            self.enter_evict_first(slot);
        } else {
            self.push_back(slot, Band::Lru);
        }
        true
    }

    /// Marks an unpinned node, for the evict-first band now or with its last blocker. Returns whether the mark is new.
    pub(super) fn mark(&mut self, slot: u32) -> bool {
        let node = self.at(slot);
        if node.pins > 0 || node.marked {
            return false;
        }
        node.marked = true;
        if node.blockers == 0 {
            self.enter_evict_first(slot);
        }
        true
    }

    pub(super) fn remove_leaf(&mut self, slot: u32) {
        debug_assert_eq!(
            self.get(slot).first_child,
            NONE,
            "a node with children was removed"
        );
        let was_blocker = self.leave_list(slot) != Band::EvictFirst;
        let Node {
            hash,
            parent,
            older_sibling,
            younger_sibling,
            ..
        } = *self.get(slot);
        self.names.remove(hash, slot);
        if younger_sibling != NONE {
            self.at(younger_sibling).older_sibling = older_sibling;
        } else if parent != NONE {
            self.at(parent).first_child = older_sibling;
        }
        if older_sibling != NONE {
            self.at(older_sibling).younger_sibling = younger_sibling;
        }
        self.free.push(slot);
        if parent != NONE && self.is_leaf(parent) && self.get(parent).band == Band::Lru {
            self.set_end(parent, true);
        }
        if parent != NONE && was_blocker {
            self.unblock(parent);
        }
    }

    /// Returns whether a node has several children.
    pub(super) fn is_fork(&self, slot: u32) -> bool {
        let child = self.get(slot).first_child;
        child != NONE && self.get(child).older_sibling != NONE
    }

    pub(super) fn is_leaf(&self, slot: u32) -> bool {
        self.get(slot).first_child == NONE
    }

    /// Returns a node and all its descendants, parents before children.
    pub(super) fn subtree(&self, top: u32) -> Vec<u32> {
        let mut found = vec![top];
        let mut next = 0;
        while let Some(&slot) = found.get(next) {
            next += 1;
            let mut child = self.get(slot).first_child;
            while child != NONE {
                found.push(child);
                child = self.get(child).older_sibling;
            }
        }
        found
    }

    pub(super) fn in_band(&self, band: Band) -> impl Iterator<Item = u32> {
        let front = match band {
            Band::Held => NONE,
            Band::EvictFirst => self.evict_first.front,
            Band::Lru => self.lru.front,
        };
        std::iter::successors(present(front), |&slot| present(self.get(slot).after))
    }

    /// Records that one child of `parent` entered the evict-first band or left; a waiting parent may follow it.
    fn unblock(&mut self, parent: u32) {
        let node = self.at(parent);
        node.blockers -= 1;
        if node.blockers == 0 && node.marked && node.band == Band::Lru {
            self.enter_evict_first(parent);
        }
    }

    /// Moves a node whose children are all in the evict-first band there, then its waiting ancestors.
    fn enter_evict_first(&mut self, slot: u32) {
        let mut slot = slot;
        loop {
            self.leave_list(slot);
            self.push_back(slot, Band::EvictFirst);
            self.entries += 1;
            self.at(slot).entered = self.entries;
            let parent = self.get(slot).parent;
            if parent == NONE {
                return;
            }
            let node = self.at(parent);
            node.blockers -= 1;
            if node.blockers > 0 || !node.marked || node.band != Band::Lru {
                return;
            }
            slot = parent;
        }
    }

    /// Removes a node that is being pinned from its band. Its parent, pinned by the same chain, is blocked by it again.
    fn leave_band(&mut self, slot: u32) {
        if self.leave_list(slot) == Band::EvictFirst {
            let parent = self.get(slot).parent;
            if parent != NONE {
                self.at(parent).blockers += 1;
            }
        }
    }

    fn push_back(&mut self, slot: u32, band: Band) {
        let tokens = u64::from(self.get(slot).tokens);
        let list = match band {
            Band::Held => return,
            Band::EvictFirst => {
                self.evict_first_tokens += tokens;
                &mut self.evict_first
            }
            Band::Lru => &mut self.lru,
        };
        let before = std::mem::replace(&mut list.back, slot);
        if before == NONE {
            list.front = slot;
        } else {
            self.at(before).after = slot;
        }
        let node = self.at(slot);
        node.band = band;
        node.before = before;
        node.after = NONE;
        if band == Band::Lru && self.is_leaf(slot) {
            self.set_end(slot, true);
        }
    }

    fn leave_list(&mut self, slot: u32) -> Band {
        if self.get(slot).band == Band::Lru {
            self.set_end(slot, false);
        }
        let node = self.at(slot);
        let (band, before, after, tokens) = (node.band, node.before, node.after, u64::from(node.tokens));
        node.band = Band::Held;
        node.before = NONE;
        node.after = NONE;
        let list = match band {
            Band::Held => return band,
            Band::EvictFirst => {
                self.evict_first_tokens -= tokens;
                &mut self.evict_first
            }
            Band::Lru => &mut self.lru,
        };
        if before == NONE {
            list.front = after;
        }
        if after == NONE {
            list.back = before;
        }
        if before != NONE {
            self.at(before).after = after;
        }
        if after != NONE {
            self.at(after).before = before;
        }
        band
    }

    fn children(&self, slot: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(present(self.get(slot).first_child), |&child| {
            present(self.get(child).older_sibling)
        })
    }
}
