//! The cost of missing tokens: to the turn that needs them, and to the turns queued behind it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::MU;
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::residency::Compared;
use crate::units::{Millis, Tokens};

const MEMORY: usize = 1_000;
const REFRESH_EVERY: usize = 64;
/// Turns needed before T is estimated; until then T is the objective.
const ENOUGH: usize = 200;
/// Share of turns that start within T.
pub const IN_TIME: f64 = 0.93;

/// A turn whose first token has been sent.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Time before the turn's prefill started.
    pub wait: Millis,
    /// Time to first token.
    pub ttft: Millis,
    /// Time-to-first-token objective.
    pub objective: Millis,
    /// Prompt tokens.
    pub prompt: Tokens,
    /// Cached prompt tokens.
    pub cached: Tokens,
    /// Prompt tokens that the conversation had before this turn: all but what this prompt added.
    pub history: Tokens,
    /// Prompt tokens cached with hints and under LRU, where the worker takes hints.
    pub compared: Option<Compared>,
    /// The worker's prefill cost.
    pub cost: PrefillCost,
}

/// Estimates of lateness and of the turns that wait behind a late one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatenessCost {
    /// μ, if it is not [`MU`].
    #[serde(skip)]
    mu: Option<f64>,
    /// Recent times to first token, in ms.
    took: VecDeque<f64>,
    /// Per turn of a known conversation: its time with the whole history cached, and its objective, in ms.
    at_best: VecDeque<(f64, f64)>,
    /// As of the last refresh, sorted: slack of each of these turns to T and to its objective, in ms.
    #[serde(skip)]
    left: Vec<f64>,
    #[serde(skip)]
    scratch: Vec<f64>,
    #[serde(skip)]
    target: Option<f64>,
    /// P with no token missing, as of the last refresh.
    #[serde(skip)]
    late_whole: Option<f64>,
    #[serde(skip)]
    since: usize,
    turns: f64,
    behind: f64,
    late_behind: f64,
    /// Per worker: turns in the current busy period so far.
    #[serde(skip)]
    ranks: Vec<f64>,
    alpha: f64,
}

impl LatenessCost {
    pub(super) fn with_mu(mu: f64) -> Self {
        Self {
            mu: Some(mu),
            ..Self::default()
        }
    }

    /// Restores the estimates of another process where fewer turns were observed here. Ignores numbers that no
    /// observations can have led to. Returns whether they are in force.
    pub(super) fn restore(&mut self, kept: &Self) -> bool {
        let sound = |number: &f64| (0.0..=1e12).contains(number);
        let means = [kept.turns, kept.behind, kept.late_behind, kept.alpha];
        let times = kept
            .at_best
            .iter()
            .flat_map(|(took, objective)| [took, objective]);
        let is_sound = means.iter().chain(&kept.took).chain(times).all(sound)
            && kept.turns <= MEMORY as f64
            && kept.took.len().max(kept.at_best.len()) <= MEMORY;
        if !is_sound || kept.turns <= self.turns {
            return false;
        }
        *self = Self {
            mu: self.mu,
            ranks: std::mem::take(&mut self.ranks),
            ..kept.clone()
        };
        self.refresh();
        true
    }

    pub(super) fn admit(&mut self, worker: WorkerId) {
        if self.ranks.len() <= worker.index() {
            self.ranks.resize(worker.index() + 1, 0.0);
        }
        self.ranks[worker.index()] = 0.0;
    }

    pub(super) fn begun(&mut self, worker: WorkerId, turn: &Begun) {
        let target = self.target.unwrap_or(turn.objective.0);
        let Some(rank) = self.ranks.get_mut(worker.index()) else {
            return;
        };
        // Each turn of a busy period waits behind all earlier ones, so its rank is the number of turns ahead of it.
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

    /// Returns T, or `None` before enough turns were seen.
    pub fn target(&self) -> Option<Millis> {
        self.target.map(Millis)
    }

    /// Returns how many of T and its objective the turn exceeds with `cached` tokens cached; `None` before T is known.
    pub(super) fn lateness(&self, turn: &Begun, cached: Tokens) -> Option<f64> {
        let target = self.target?;
        let cached = cached.min(turn.prompt);
        let took = turn.wait.0 + turn.cost.prefill(turn.prompt.saturating_sub(cached), cached).0;
        Some(f64::from(u8::from(took > target)) + f64::from(u8::from(took > turn.objective.0)))
    }

    /// Returns κ: the mean number of turns that wait behind one.
    pub fn kappa(&self) -> f64 {
        self.behind
    }

    /// Returns ε: the mean number of late turns behind one.
    pub fn epsilon(&self) -> f64 {
        self.late_behind
    }

    /// Returns P for a returning turn with `missing` tokens of its history missing; 1 before any estimate.
    pub fn late(&self, missing: f64) -> f64 {
        // Most ends have lost nothing, so that case is cached.
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

    /// Returns the number of turns behind [`LatenessCost::left`], which holds two values per turn.
    fn turns_at_best(&self) -> f64 {
        self.left.len() as f64 / 2.0
    }

    /// Returns the cost of one return with `missing` tokens missing: `P + ε + μ(1 + κ)`.
    pub fn of_return(&self, missing: f64) -> f64 {
        self.late(missing) + self.beside()
    }

    /// Returns the most missing tokens at which a return costs at most `harm`; infinite if any number does.
    pub fn missing_worth(&self, harm: f64) -> f64 {
        let late = harm - self.beside();
        if late < 0.0 || self.left.is_empty() {
            return if late >= 1.0 { f64::INFINITY } else { 0.0 };
        }
        // `allowed` slacks may be exceeded; the next one must not be.
        let allowed = (late * self.turns_at_best()) as usize;
        let next = self.left.get(allowed);
        next.map_or(f64::INFINITY, |left| (left / self.alpha.max(1e-9)).max(0.0))
    }

    fn beside(&self) -> f64 {
        self.late_behind + self.mu.unwrap_or(MU) * (1.0 + self.behind)
    }
}

fn remember<T>(of: &mut VecDeque<T>, turn: T) {
    of.push_back(turn);
    if of.len() > MEMORY {
        of.pop_front();
    }
}
