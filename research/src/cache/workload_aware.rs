//! Workload-aware eviction: the lowest probability of reuse soon, by the reuse habits of its class.
//!
//! From *KVCache Cache in the Wild* (Wang et al., USENIX ATC 2025): reuse probability within a workload class follows
//! an exponential, classes differ widely, and the same class is predictable over hours. A block's priority is the pair
//!
//! ```text
//! ( ReuseProb_c(t, life_c), −offset )      compared in this order; the least is evicted
//! ```
//!
//! with `t` the time since its last use and `offset` its position in the prompt.
//!
//! # Gaps in the source, and the choices made
//! - Class: traffic class times turn number (first, second, third and later), as its measurements are broken down.
//! - Probability: of a return within the next `life_c`, given none for `t`. With return probability `p` and rate `g` of
//!   the class, `p·e^{−gt}·(1 − e^{−g·life}) / (1 − p + p·e^{−gt})`. Fits are refreshed with every turn, recent ones
//!   weighing more ([`super::returns`]).
//! - Lifetime: three mean gaps, within which 95 % of the returns fall. Past it the probability counts as 0, and of such
//!   candidates the longest is evicted first.
//!
//! Within a class the probability only falls with `t`, so the class's oldest conversation is its candidate: eviction
//! compares one candidate per class, O(classes), and finding it is O(log n).

use std::collections::BTreeMap;

use super::lengths::{Lengths, SlotId};
use super::returns::Returns;
use super::{CacheConfig, CachePolicy, Served, residency_of};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

const TURN_CLASSES: usize = 3;

/// A class's lifetime in mean gaps: `1 − e⁻³` is 95 %.
const LIFE_GAPS: f64 = 3.0;

#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    returns: Returns,
}

impl Habits {
    pub(super) fn learn(&mut self, turn: &Served) -> usize {
        let class = turn.class.index() * TURN_CLASSES + (turn.turn as usize).min(TURN_CLASSES - 1);
        self.returns.observe(turn.conversation, class, turn.at);
        class
    }

    /// Returns `ReuseProb` of a block or conversation of this class, `age_ms` after its last turn.
    pub(super) fn reuse(&self, class: usize, age_ms: f64) -> f64 {
        let p = self.returns.probability(class);
        let Some(gap_ms) = self.returns.mean_gap_ms(class) else {
            return p;
        };
        let gaps = age_ms / gap_ms;
        if gaps > LIFE_GAPS {
            return 0.0;
        }
        let silent = p * (-gaps).exp();
        silent * (1.0 - (-LIFE_GAPS).exp()) / (1.0 - p + silent)
    }
}

/// Workload-aware eviction.
#[derive(Clone, Debug)]
pub struct WorkloadAware {
    lengths: Lengths,
    config: CacheConfig,
    habits: Habits,
    queues: Vec<BTreeMap<u64, SlotId>>,
    states: Vec<Standing>,
    served: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    class: usize,
    served: u64,
    at: Millis,
}

impl WorkloadAware {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        let (queues, states) = (Vec::new(), Vec::new());
        Self {
            lengths: Lengths::new(&config),
            config,
            habits: Habits::default(),
            queues,
            states,
            served: 0,
        }
    }

    fn victim(&self, now: Millis, spared: Option<SlotId>) -> Option<SlotId> {
        let heads = self
            .queues
            .iter()
            .filter_map(|queue| queue.values().find(|slot| Some(**slot) != spared));
        let priority = |slot: SlotId| {
            let standing = self.states[slot as usize];
            let reuse = self
                .habits
                .reuse(standing.class, now.saturating_sub(standing.at).0);
            (reuse, self.lengths.resident_at(slot))
        };
        let least = heads.copied().min_by(|a, b| {
            let ((p, x), (q, y)) = (priority(*a), priority(*b));
            p.total_cmp(&q).then(y.cmp(&x))
        });
        least.or(spared)
    }

    fn delist(&mut self, slot: SlotId) {
        let Standing { class, served, .. } = self.states[slot as usize];
        self.queues[class].remove(&served);
    }
}

impl CachePolicy for WorkloadAware {
    residency_of!(lengths);

    fn served(&mut self, turn: &Served) {
        let class = self.habits.learn(turn);
        if let Some(slot) = self.lengths.slot(turn.conversation) {
            self.delist(slot);
        }
        self.served += 1;
        let Some(slot) = self.lengths.touch(turn.conversation, turn.length) else {
            return;
        };
        if self.states.len() <= slot as usize {
            self.states.resize(slot as usize + 1, Standing::default());
        }
        if self.queues.len() <= class {
            self.queues.resize(class + 1, BTreeMap::new());
        }
        self.states[slot as usize] = Standing {
            class,
            served: self.served,
            at: turn.at,
        };
        self.queues[class].insert(self.served, slot);
        while !self.lengths.fits() {
            let Some(victim) = self.victim(turn.at, self.config.forced.then_some(slot)) else {
                return;
            };
            if self.lengths.resident_at(victim) <= self.lengths.excess() {
                self.delist(victim);
            }
            self.lengths.cut_excess(victim, 0);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.lengths.check()?;
        let queued: usize = self.queues.iter().map(BTreeMap::len).sum();
        let resident = self.lengths.len();
        if resident == queued {
            Ok(())
        } else {
            Err(format!("{resident} resident, {queued} queued"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Future;
    use simulator::trace::ClassId;

    #[test]
    fn a_class_that_never_returns_gives_way_to_one_that_does() {
        let mut cache = WorkloadAware::new(CacheConfig::new(Tokens(1000)));
        let mut now = 0.0;
        let mut hits = 0;
        for round in 0..600u64 {
            // Class 1 returns after 100 ms, with four one-shot conversations of class 0 in between.
            let turns = [(1, 1, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (1, 1, 1)];
            for (name, class, turn) in turns {
                let conversation = ConversationId(round * 10 + name);
                hits += u64::from(turn == 1 && round > 300 && cache.resident(conversation) == Tokens(300));
                cache.served(&Served {
                    conversation,
                    turn,
                    class: ClassId(class),
                    at: Millis(now),
                    prompt: Tokens(300),
                    length: Tokens(300 * (u64::from(turn) + 1)),
                    future: Future::Unknown,
                });
                assert_eq!(cache.check(), Ok(()));
                now += 20.0;
            }
        }
        assert!(hits > 290, "{hits}");
    }
}
