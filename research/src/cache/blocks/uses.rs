//! Foresight for a whole trace where turns overlap and end out of order: the turns that use each block, by its name.
//!
//! [`super::foresight`] numbers turns as they are served, one after the other. Here a turn is numbered by its position
//! in the trace, and has *passed* once it can no longer use what a cache holds: its prefill has begun, or it went to
//! another worker. A block's next use is the first turn that uses it and has not passed; the furthest is evicted first
//! (Belady), but with budgets after the blocks past the budget of that turn (Tail-Optimized Belady). Values are renewed
//! when a block becomes a free leaf, and when the turn that they name passes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::Served;
use super::scored::{Score, Used};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// The turns that use each block. Four bytes per block and turn.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    spans: FxHashMap<PrefixHash, (usize, usize)>,
    turns: Vec<u32>,
}

impl Uses {
    /// Collects the uses from a trace's turns in order, each given by its full blocks.
    pub fn new<'a>(chains: impl Iterator<Item = &'a [PrefixHash]> + Clone) -> Self {
        let mut spans: FxHashMap<PrefixHash, (usize, usize)> = FxHashMap::default();
        for &hash in chains.clone().flatten() {
            spans.entry(hash).or_default().1 += 1;
        }
        let mut total = 0;
        for span in spans.values_mut() {
            let count = span.1;
            *span = (total, total);
            total += count;
        }
        let mut turns = vec![0; total];
        for (turn, chain) in (0..).zip(chains) {
            for hash in chain {
                if let Some(span) = spans.get_mut(hash) {
                    turns[span.1] = turn;
                    span.1 += 1;
                }
            }
        }
        Self { spans, turns }
    }

    /// Returns the turns that use a block, ascending.
    pub fn of(&self, hash: PrefixHash) -> &[u32] {
        self.spans
            .get(&hash)
            .map_or(&[], |&(begin, end)| &self.turns[begin..end])
    }
}

/// Value of a block past the budget of its next turn, before that turn's number is subtracted: below the value of every
/// block within a budget, and exact after the subtraction.
const FREE: f64 = -1e12;

/// The score of the hindsight policies.
#[derive(Clone, Debug)]
pub struct Upcoming {
    uses: Arc<Uses>,
    /// By turn: the tokens of the prompt that the turn cannot miss without excess. `None` to count every use alike.
    budgets: Option<Vec<Tokens>>,
    passed: Vec<bool>,
    /// Number of the first turn that has not passed.
    low: u32,
}

impl Upcoming {
    /// Creates the score of `turns` turns, none of which has passed.
    pub fn new(uses: Arc<Uses>, turns: usize, budgets: Option<Vec<Tokens>>) -> Self {
        Self {
            uses,
            budgets,
            passed: vec![false; turns],
            low: 0,
        }
    }

    fn next(&self, hash: PrefixHash) -> Option<u32> {
        let turns = self.uses.of(hash);
        let from = turns.partition_point(|turn| *turn < self.low);
        let to_come = |turn: &&u32| !self.passed[**turn as usize];
        turns[from..].iter().find(to_come).copied()
    }

    fn misses(&self, turn: u32, begin: Tokens) -> bool {
        let budgets = self.budgets.as_ref();
        budgets.is_none_or(|budgets| begin < budgets[turn as usize])
    }
}

impl Score for Upcoming {
    fn turn(&mut self, _: &Served) {}

    /// Returns the lowest value, which is renewed before any comparison.
    fn value(&self, _: Used) -> f64 {
        f64::NEG_INFINITY
    }

    fn renewed(&self, hash: PrefixHash, begin: Tokens) -> Option<f64> {
        Some(match self.next(hash) {
            Some(turn) if self.misses(turn, begin) => -f64::from(turn),
            Some(turn) => FREE - f64::from(turn),
            None => f64::NEG_INFINITY,
        })
    }

    fn passed(&mut self, turn: u32) -> Vec<f64> {
        if std::mem::replace(&mut self.passed[turn as usize], true) {
            return Vec::new();
        }
        while self.passed.get(self.low as usize) == Some(&true) {
            self.low += 1;
        }
        vec![-f64::from(turn), FREE - f64::from(turn)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses() -> Arc<Uses> {
        let chains = [&[1, 2][..], &[1, 3], &[], &[1, 2, 4]];
        let chains: Vec<Vec<_>> = chains
            .iter()
            .map(|chain| chain.iter().map(|hash| PrefixHash(*hash)).collect())
            .collect();
        Arc::new(Uses::new(chains.iter().map(Vec::as_slice)))
    }

    #[test]
    fn a_block_knows_every_turn_that_uses_it() {
        let uses = uses();
        assert_eq!(uses.of(PrefixHash(1)), [0, 1, 3]);
        assert_eq!(uses.of(PrefixHash(2)), [0, 3]);
        assert_eq!(uses.of(PrefixHash(9)), [0; 0]);
    }

    #[test]
    fn the_next_use_is_the_first_turn_that_has_not_passed() {
        let mut score = Upcoming::new(uses(), 4, None);
        assert_eq!(score.next(PrefixHash(1)), Some(0));
        assert_eq!(score.passed(1), [-1.0, FREE - 1.0]);
        assert!(score.passed(1).is_empty(), "once");
        assert_eq!(score.next(PrefixHash(1)), Some(0), "out of order");
        score.passed(0);
        assert_eq!(
            [1, 2, 3].map(|hash| score.next(PrefixHash(hash))),
            [Some(3), Some(3), None]
        );
    }

    #[test]
    fn what_the_next_turn_will_not_miss_is_worth_less_than_any_use() {
        let budgets = [0, 0, 0, 15].map(Tokens).to_vec();
        let mut score = Upcoming::new(uses(), 4, Some(budgets));
        (0..3).for_each(|turn| _ = score.passed(turn));
        let worth = |hash, begin| score.renewed(PrefixHash(hash), Tokens(begin));
        assert_eq!(worth(1, 0), Some(-3.0));
        assert_eq!(worth(4, 20), Some(FREE - 3.0));
        assert_eq!(worth(3, 10), Some(f64::NEG_INFINITY));
    }
}
