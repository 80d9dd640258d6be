//! Helpers of the generators of conversations: samples, and turns in order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rand::Rng;
use rand_distr::{Distribution, Exp1, LogNormal, Uniform};

pub(super) fn exponential(rng: &mut impl Rng, mean: f64) -> f64 {
    let unit: f64 = Exp1.sample(rng);
    unit * mean
}

pub(super) fn unit(rng: &mut impl Rng) -> f64 {
    Uniform::new(0.0, 1.0).map_or(0.5, |unit| unit.sample(rng))
}

pub(super) fn lognormal(rng: &mut impl Rng, median: f64, sigma: f64) -> u64 {
    let sample = LogNormal::new(median.ln(), sigma).map_or(median, |length| length.sample(rng));
    sample.round().max(1.0) as u64
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pending<T> {
    pub(super) at_s: f64,
    pub(super) conversation: u64,
    pub(super) of: T,
}

impl<T> PartialEq for Pending<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Pending<T> {}

impl<T> PartialOrd for Pending<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Pending<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_s.total_cmp(&other.at_s)).then(self.conversation.cmp(&other.conversation))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Agenda<T>(BinaryHeap<Reverse<Pending<T>>>);

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self(BinaryHeap::new())
    }
}

impl<T> Agenda<T> {
    pub(super) fn push(&mut self, turn: Pending<T>) {
        self.0.push(Reverse(turn));
    }

    pub(super) fn first_at_s(&self) -> Option<f64> {
        self.0.peek().map(|first| first.0.at_s)
    }

    pub(super) fn pop(&mut self) -> Option<Pending<T>> {
        self.0.pop().map(|Reverse(first)| first)
    }
}
