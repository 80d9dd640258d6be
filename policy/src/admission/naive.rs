//! The reference implementation of the fair queue, by exhaustive search.

use std::collections::BTreeMap;

use super::Flow;

/// The behaviour of [`FairQueue`](super::FairQueue), in O(n).
#[derive(Debug, Default)]
pub(super) struct NaiveQueue {
    /// In order of arrival: number, flow, priority, cost over weight.
    waiting: Vec<(u64, Flow, i32, f64)>,
    virtual_time: BTreeMap<i32, f64>,
    /// Per class and flow: the finish tag of the last service, or the start of the busy period.
    tags: BTreeMap<(i32, Flow), f64>,
    arrived: u64,
}

impl NaiveQueue {
    /// Enqueues a request and returns its number.
    pub(super) fn push(&mut self, flow: Flow, priority: i32, weight: f64, cost: f64) -> u64 {
        let v = *self.virtual_time.entry(priority).or_insert(0.0);
        if !self
            .waiting
            .iter()
            .any(|(_, other, class, _)| (*other, *class) == (flow, priority))
        {
            let tag = self.tags.entry((priority, flow)).or_insert(v);
            *tag = tag.max(v);
        }
        self.arrived += 1;
        self.waiting.push((self.arrived, flow, priority, cost / weight));
        self.arrived
    }

    /// Returns the number of the next request.
    #[must_use]
    pub(super) fn peek(&self) -> Option<u64> {
        let class = self.waiting.iter().map(|(_, _, priority, _)| *priority).max()?;
        let mut best: Option<(f64, u64)> = None;
        let mut seen = Vec::new();
        for (number, flow, _, _) in self.waiting.iter().filter(|waiting| waiting.2 == class) {
            if seen.contains(flow) {
                continue;
            }
            seen.push(*flow);
            let tag = self.tags.get(&(class, *flow)).copied().unwrap_or(0.0);
            if best.is_none_or(|least| (tag, *number) < least) {
                best = Some((tag, *number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// Serves the next request.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let number = self.peek()?;
        let at = self.waiting.iter().position(|waiting| waiting.0 == number)?;
        let (_, flow, class, share) = self.waiting.remove(at);
        let tag = self.tags.entry((class, flow)).or_insert(0.0);
        self.virtual_time.insert(class, *tag);
        *tag += share;
        self.forget_idle(class);
        Some(number)
    }

    /// Removes a request unserved. Returns whether it was queued.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.0 == number) else {
            return false;
        };
        let (_, _, class, _) = self.waiting.remove(at);
        self.forget_idle(class);
        true
    }

    fn forget_idle(&mut self, class: i32) {
        if !self.waiting.iter().any(|waiting| waiting.2 == class) {
            self.virtual_time.remove(&class);
            self.tags.retain(|(of, _), _| *of != class);
        }
    }
}
