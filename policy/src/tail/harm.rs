//! What missing tokens do to the turn that needs them, and to the turns behind it.

use std::collections::VecDeque;

use super::MU;
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::residency::Compared;
use crate::units::{Millis, Tokens};

/// Turns that are remembered.
const MEMORY: usize = 1_000;
/// Turns between two times that quantiles are taken anew.
const REFRESH_EVERY: usize = 64;
/// Turns that a quantile needs; until then T is the objective.
const ENOUGH: usize = 200;
/// Share of turns that start within T.
pub const IN_TIME: f64 = 0.93;

/// A turn whose first token passed.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Time before its own prefill.
    pub wait: Millis,
    /// Time to first token.
    pub ttft: Millis,
    /// What it was to meet.
    pub objective: Millis,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Those that were cached.
    pub cached: Tokens,
    /// Those that its conversation had before: all but what the prompt added.
    pub history: Tokens,
    /// What of it was cached on a worker that takes hints, and would have been under LRU.
    pub compared: Option<Compared>,
    /// What prefill costs on its worker.
    pub cost: PrefillCost,
}

/// What is known of lateness.
#[derive(Clone, Debug, Default)]
pub struct Harm {
    /// What turns took.
    took: VecDeque<f64>,
    /// What turns of a known conversation would have taken with all of their history cached, and their objectives.
    at_best: VecDeque<(f64, f64)>,
    /// As of the last refresh: the time that each of these had left until T and until its objective, sorted.
    left: Vec<f64>,
    scratch: Vec<f64>,
    target: Option<f64>,
    /// P with nothing missing, as of the last refresh.
    late_whole: Option<f64>,
    since: usize,
    turns: f64,
    behind: f64,
    late_behind: f64,
    /// By worker: turns of this busy period so far.
    ranks: Vec<f64>,
    alpha: f64,
}

impl Harm {
    /// A worker takes a slot.
    pub(super) fn admit(&mut self, worker: WorkerId) {
        if self.ranks.len() <= worker.index() {
            self.ranks.resize(worker.index() + 1, 0.0);
        }
        self.ranks[worker.index()] = 0.0;
    }

    /// A turn's first token passed.
    pub(super) fn begun(&mut self, worker: WorkerId, turn: &Begun) {
        let target = self.target.unwrap_or(turn.objective.0);
        let Some(rank) = self.ranks.get_mut(worker.index()) else {
            return;
        };
        // Every turn of a busy period is behind all before it, so its rank is how many it was behind.
        *rank = if turn.wait.0 > 1e-6 { *rank + 1.0 } else { 0.0 };
        let late = if turn.ttft.0 > target { *rank } else { 0.0 };
        self.turns = (self.turns + 1.0).min(MEMORY as f64);
        self.behind += (*rank - self.behind) / self.turns;
        self.late_behind += (late - self.late_behind) / self.turns;
        self.alpha += (turn.cost.alpha_ms_per_token - self.alpha) / self.turns.min(32.0);
        remember(&mut self.took, turn.ttft.0);
        if turn.history > Tokens::ZERO {
            let added = turn.prompt.saturating_sub(turn.history);
            let prefill = turn.cost.prefill(added, turn.history.min(turn.prompt));
            remember(&mut self.at_best, (turn.wait.0 + prefill.0, turn.objective.0));
        }
        self.since += 1;
        if self.since >= REFRESH_EVERY {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        self.since = 0;
        if self.took.len() >= ENOUGH {
            self.scratch.clear();
            self.scratch.extend(&self.took);
            let at = ((self.scratch.len() - 1) as f64 * IN_TIME) as usize;
            let (_, target, _) = self.scratch.select_nth_unstable_by(at, f64::total_cmp);
            self.target = Some(*target);
        }
        self.left.clear();
        if let Some(target) = self.target {
            let left = |(took, objective): &(f64, f64)| [target - took, objective - took];
            self.left.extend(self.at_best.iter().flat_map(left));
            self.left.sort_unstable_by(f64::total_cmp);
        }
        self.late_whole = Some(self.share_late(0.0));
    }

    /// T; `None` while too few turns were seen.
    #[must_use]
    pub fn target(&self) -> Option<Millis> {
        self.target.map(Millis)
    }

    /// How late a turn is that finds so much of its prompt cached, as [`Harm::late`] counts: later than T, and than its
    /// objective. `None` before T is known.
    pub(super) fn lateness(&self, turn: &Begun, cached: Tokens) -> Option<f64> {
        let target = self.target?;
        let cached = cached.min(turn.prompt);
        let took = turn.wait.0 + turn.cost.prefill(turn.prompt.saturating_sub(cached), cached).0;
        Some(f64::from(u8::from(took > target)) + f64::from(u8::from(took > turn.objective.0)))
    }

    /// κ: turns that wait behind one, on average.
    #[must_use]
    pub fn kappa(&self) -> f64 {
        self.behind
    }

    /// ε: late turns behind one, on average.
    #[must_use]
    pub fn epsilon(&self) -> f64 {
        self.late_behind
    }

    /// P of a returning turn of whose history so many tokens are missing: the probability that it takes longer than T, and
    /// that it misses its objective, added up. 1 before anything is known.
    #[must_use]
    pub fn late(&self, missing: f64) -> f64 {
        // Most ends are whole.
        match self.late_whole {
            Some(late) if missing <= 0.0 => late,
            _ => self.share_late(missing),
        }
    }

    fn share_late(&self, missing: f64) -> f64 {
        if self.left.is_empty() {
            return 1.0;
        }
        let prefill = self.alpha * missing;
        self.left.partition_point(|left| *left < prefill) as f64 / self.turns_at_best()
    }

    /// Turns behind [`Harm::left`].
    fn turns_at_best(&self) -> f64 {
        self.left.len() as f64 / 2.0
    }

    /// What one return with so many missing tokens costs: `P + ε + μ(1 + κ)`.
    #[must_use]
    pub fn of_return(&self, missing: f64) -> f64 {
        self.late(missing) + self.beside()
    }

    /// The most missing tokens with which a return costs no more than this. Infinite where any number does.
    #[must_use]
    pub fn missing_worth(&self, harm: f64) -> f64 {
        let late = harm - self.beside();
        if late < 0.0 || self.left.is_empty() {
            return if late >= 1.0 { f64::INFINITY } else { 0.0 };
        }
        // So many may be late; the next one must not be.
        let allowed = (late * self.turns_at_best()) as usize;
        let next = self.left.get(allowed);
        next.map_or(f64::INFINITY, |left| (left / self.alpha.max(1e-9)).max(0.0))
    }

    fn beside(&self) -> f64 {
        self.late_behind + MU * (1.0 + self.behind)
    }
}

fn remember<T>(of: &mut VecDeque<T>, turn: T) {
    of.push_back(turn);
    if of.len() > MEMORY {
        of.pop_front();
    }
}
