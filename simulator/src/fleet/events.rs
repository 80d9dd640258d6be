//! The event queue: a heap in order of time, ties in order of creation.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use policy::units::Millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Arrive(u32),
    /// A worker has finished a piece of its running prefill. Stale if the worker has died since, as `life` shows.
    Computed {
        worker: u32,
        life: u32,
    },
    /// A turn's response is complete.
    Answered {
        turn: u32,
        life: u32,
    },
    Fault(u32),
    /// A held turn may have room by now.
    Look,
    /// A batch of cache events reaches the router.
    Delivered {
        worker: u32,
    },
    /// A message of one router reaches the others.
    Heard,
    /// Every router announces its turns in flight.
    RollCall,
}

#[derive(Debug)]
struct Entry {
    at: Millis,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Compares in reverse, so that the heap's greatest element is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at.0.total_cmp(&self.at.0)).then(other.order.cmp(&self.order))
    }
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    made: u64,
}

impl Agenda {
    pub(super) fn at(&mut self, at: Millis, event: Event) {
        let order = self.made;
        self.made += 1;
        self.heap.push(Entry { at, order, event });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<(Millis, Event)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}
