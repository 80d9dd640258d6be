//! The scores of blocks, from the policies of private conversations.

use std::sync::Arc;

use super::super::et_lru::{EtLruOptions, ExpectedExcess};
use super::super::gdfs::GreedyDual;
use super::super::spec::gdfs_cost;
use super::super::workload_aware::Habits;
use super::super::{CacheConfig, Served};
use super::foresight::Foresight;
use super::scored::{Score, Used};
use policy::units::{Millis, Tokens};

/// Greedy-Dual-Frequency-Size: each block is an object of its own ([`super::super::gdfs`]).
#[derive(Clone, Debug)]
pub(super) struct Frequency(GreedyDual);

impl Frequency {
    /// Creates the score; `attention` is the ratio of attention to linear cost.
    pub(super) fn new(attention: f64) -> Self {
        Self(GreedyDual::new(gdfs_cost(attention)))
    }
}

impl Score for Frequency {
    fn turn(&mut self, _: &Served) {}

    fn value(&self, block: Used) -> f64 {
        let size = block.end.saturating_sub(block.begin);
        self.0.h(f64::from(block.times), size, block.begin)
    }

    fn evicted(&mut self, value: f64) {
        self.0.evicted(value);
    }
}

/// Lowest probability of reuse within the lifetime of its class, then furthest from the beginning
/// ([`super::super::workload_aware`]). A group is a class, and a value the time of the last use.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassReuse {
    habits: Habits,
    class: usize,
    now: Millis,
}

impl Score for ClassReuse {
    fn turn(&mut self, turn: &Served) {
        self.class = self.habits.learn(turn);
        self.now = turn.at;
    }

    fn group(&self) -> usize {
        self.class
    }

    fn value(&self, _: Used) -> f64 {
        self.now.0
    }

    fn now(&mut self, at: Millis) {
        self.now = at;
    }

    fn worth(&self, group: usize, value: f64) -> f64 {
        self.habits.reuse(group, self.now.saturating_sub(Millis(value)).0)
    }
}

/// Least expected excess spared ([`super::super::et_lru`]) by a block's last token, for its last conversation.
#[derive(Clone, Debug)]
pub(super) struct Excess {
    excess: ExpectedExcess,
    weight: f64,
    length: u64,
}

impl Excess {
    pub(super) fn new(config: &CacheConfig, options: EtLruOptions) -> Self {
        Self {
            excess: ExpectedExcess::new(config, options),
            weight: 0.0,
            length: 0,
        }
    }
}

impl Score for Excess {
    fn turn(&mut self, turn: &Served) {
        self.weight = self.excess.learn(turn);
        self.length = turn.length.0;
    }

    fn value(&self, block: Used) -> f64 {
        // Blocks past the length contradict the trace, and get the value of its last token.
        let resident = block.end.0.min(self.length);
        self.excess.value(self.weight, self.length, resident).0
    }
}

/// Furthest next use first ([`super::super::belady`]), after blocks that the next use will not miss
/// ([`super::foresight`]).
#[derive(Clone, Debug)]
pub(super) struct Hindsight {
    foresight: Arc<Foresight>,
    config: CacheConfig,
    capped: bool,
    turns: usize,
}

impl Hindsight {
    /// Creates the score. `capped` selects Tail-Optimized Belady, with the configuration's threshold.
    pub(super) fn new(foresight: Arc<Foresight>, config: CacheConfig, capped: bool) -> Self {
        Self {
            foresight,
            config,
            capped,
            turns: 0,
        }
    }
}

impl Score for Hindsight {
    fn turn(&mut self, _: &Served) {
        self.turns += 1;
    }

    fn value(&self, block: Used) -> f64 {
        let index = block.begin.full_blocks(self.config.block_tokens) as usize;
        let next = self
            .turns
            .checked_sub(1)
            .and_then(|now| self.foresight.next(now, index));
        // Past the budget of its next turn a block spares no excess, and is resident again after that turn.
        let missed = |input: Tokens| !self.capped || block.begin.0 < self.config.budget(input, Tokens::ZERO);
        match next {
            Some((turn, input)) if missed(input) => -(turn as f64),
            _ => f64::NEG_INFINITY,
        }
    }
}
