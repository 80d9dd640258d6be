//! Return probability and mean gap per class of turns, learned from the turns. A turn of class `c` is followed by
//! another with probability `p_c`, after a mean gap `1/g_c`; just after it the conversation's hazard is `λ_c =
//! p_c·g_c`. Observations decay slowly, a rarely seen class is shrunk towards the estimate of all, and a conversation's
//! own returns correct its class's hazard. A bounded window keeps last turns, also of evicted conversations.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use policy::ids::ConversationId;
use policy::units::Millis;

/// Upper bound on conversations whose last turn is kept.
const WINDOW: usize = 1 << 16;

/// Turns that a class needs to weigh as much as all classes together.
const PRIOR_TURNS: f64 = 40.0;

/// Returns that a conversation needs to weigh as much as its class: the shape of the gamma prior.
const OWN_PRIOR: f64 = 2.5;

/// Weight that a class keeps of its past at each of its turns.
const KEEP: f64 = 0.9998;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassReturns {
    turns: f64,
    returned: f64,
    sum_gap_ms: f64,
}

#[derive(Clone, Copy, Debug)]
struct LastTurn {
    class: usize,
    at: Millis,
    stamp: u64,
    /// Returns of this conversation so far.
    returns: f64,
    /// Total time of those returns.
    waited_ms: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Returns {
    classes: Vec<ClassReturns>,
    all: ClassReturns,
    last: FxHashMap<ConversationId, LastTurn>,
    order: VecDeque<(ConversationId, u64)>,
    stamp: u64,
}

impl ClassReturns {
    fn turn(&mut self) {
        self.turns = self.turns * KEEP + 1.0;
        self.returned *= KEEP;
        self.sum_gap_ms *= KEEP;
    }

    fn returned(&mut self, gap_ms: f64) {
        self.returned += 1.0;
        self.sum_gap_ms += gap_ms;
    }

    fn probability(&self) -> f64 {
        // Prior of one return in two turns.
        (self.returned + 1.0) / (self.turns + 2.0)
    }

    fn mean_gap_ms(&self) -> Option<f64> {
        (self.returned > 0.0 && self.sum_gap_ms > 0.0).then(|| self.sum_gap_ms / self.returned)
    }
}

impl Returns {
    /// Records a turn of `class` of the conversation; classes are small dense numbers.
    pub(super) fn observe(&mut self, id: ConversationId, class: usize, at: Millis) {
        if self.classes.len() <= class {
            self.classes.resize(class + 1, ClassReturns::default());
        }
        self.stamp += 1;
        let stamp = self.stamp;
        let mut last = LastTurn {
            class,
            at,
            stamp,
            returns: 0.0,
            waited_ms: 0.0,
        };
        if let Some(previous) = self.last.get(&id) {
            let gap_ms = at.saturating_sub(previous.at).0;
            last.returns = previous.returns + 1.0;
            last.waited_ms = previous.waited_ms + gap_ms;
            self.classes[previous.class].returned(gap_ms);
            self.all.returned(gap_ms);
        }
        self.last.insert(id, last);
        self.classes[class].turn();
        self.all.turn();
        self.order.push_back((id, stamp));
        while self.order.len() > WINDOW {
            let Some((oldest, stamp)) = self.order.pop_front() else {
                break;
            };
            if self.last.get(&oldest).is_some_and(|last| last.stamp == stamp) {
                self.last.remove(&oldest);
            }
        }
    }

    /// Returns p_c, shrunk towards the probability of all turns.
    pub(super) fn probability(&self, class: usize) -> f64 {
        let class = self.classes.get(class).copied().unwrap_or_default();
        (class.returned + PRIOR_TURNS * self.all.probability()) / (class.turns + PRIOR_TURNS)
    }

    /// Returns 1/g_c in milliseconds, shrunk likewise; `None` before the first return.
    pub(super) fn mean_gap_ms(&self, class: usize) -> Option<f64> {
        let all = self.all.mean_gap_ms()?;
        let class = self.classes.get(class).copied().unwrap_or_default();
        Some((class.sum_gap_ms + PRIOR_TURNS * all) / (class.returned + PRIOR_TURNS))
    }

    /// Returns λ_c = p_c·g_c per millisecond; 1 before the first return, when all classes are alike.
    pub(super) fn hazard(&self, class: usize) -> f64 {
        self.mean_gap_ms(class)
            .map_or(1.0, |gap| self.probability(class) / gap)
    }

    /// Returns the hazard of one conversation: its returns over its waiting time, shrunk towards its class's hazard.
    pub(super) fn own_hazard(&self, id: ConversationId, class: usize) -> f64 {
        let prior = self.hazard(class);
        let (returns, waited_ms) = self
            .last
            .get(&id)
            .map_or((0.0, 0.0), |last| (last.returns, last.waited_ms));
        (OWN_PRIOR + returns) / (OWN_PRIOR / prior + waited_ms)
    }

    pub(super) fn overall_gap_ms(&self) -> Option<f64> {
        self.all.mean_gap_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_returns_more_and_sooner_has_the_greater_hazard() {
        let mut returns = Returns::default();
        let mut now = 0.0;
        for round in 0..2000u64 {
            // Class 0 never returns; class 1 does, after 10 ms.
            returns.observe(ConversationId(2 * round), 0, Millis(now));
            returns.observe(ConversationId(2 * round + 1), 1, Millis(now));
            returns.observe(ConversationId(2 * round + 1), 0, Millis(now + 10.0));
            now += 100.0;
        }
        assert!(returns.probability(0) < 0.02 && returns.probability(1) > 0.9);
        assert!((returns.mean_gap_ms(1).unwrap() - 10.0).abs() < 0.5);
        assert!(returns.hazard(1) > 20.0 * returns.hazard(0));
    }

    #[test]
    fn memory_is_bounded_by_the_window() {
        let mut returns = Returns::default();
        for id in 0..(3 * WINDOW as u64) {
            returns.observe(ConversationId(id), 0, Millis(id as f64));
        }
        assert_eq!((returns.last.len(), returns.order.len()), (WINDOW, WINDOW));
    }
}
