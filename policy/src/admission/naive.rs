//! The fair queue's rule, written so that it is plainly right: everything is looked through every time.

use std::collections::BTreeMap;

use super::Flow;

/// What [`FairQueue`](super::FairQueue) does, in O(n).
#[derive(Debug, Default)]
pub struct NaiveQueue {
    /// In the order of arrival: its number, its flow, its priority, cost over weight.
    waiting: Vec<(u64, Flow, i32, f64)>,
    /// Of each class, v.
    virtual_time: BTreeMap<i32, f64>,
    /// Of each flow in each class, the finish tag of what it was served last, or where it became busy.
    tags: BTreeMap<(i32, Flow), f64>,
    arrived: u64,
}

impl NaiveQueue {
    /// Lets a request wait; returns its number.
    pub fn push(&mut self, flow: Flow, priority: i32, weight: f64, cost: f64) -> u64 {
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

    /// The number of the next one.
    #[must_use]
    pub fn peek(&self) -> Option<u64> {
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

    /// Serves the next one.
    pub fn pop(&mut self) -> Option<u64> {
        let number = self.peek()?;
        let at = self.waiting.iter().position(|waiting| waiting.0 == number)?;
        let (_, flow, class, share) = self.waiting.remove(at);
        let tag = self.tags.entry((class, flow)).or_insert(0.0);
        self.virtual_time.insert(class, *tag);
        *tag += share;
        self.forget_idle(class);
        Some(number)
    }

    /// Takes one out unserved. Whether it was in.
    pub fn remove(&mut self, number: u64) -> bool {
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
