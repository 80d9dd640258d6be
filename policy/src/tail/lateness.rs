//! The cost of missing tokens: to the turn that needs them, and to the turns queued behind it.

#[cfg(test)]
mod twin;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::MU;
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::residency::Compared;
use crate::units::{Millis, Tokens};

const MEMORY: usize = 1_000;
/// Returning turns sampled per worker, and of the whole fleet.
const SAMPLED: usize = 256;
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

/// A turn of a known conversation: its wait, the tokens that it added to its history, and its objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Sampled {
    wait_ms: f64,
    added: f64,
    history: f64,
    objective_ms: f64,
}

/// The estimates of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
struct OfWorker {
    sample: VecDeque<Sampled>,
    cost: Option<PrefillCost>,
    /// Turns in the current busy period so far.
    rank: f64,
}

/// Estimates of lateness and of the turns that wait behind a late one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatenessCost {
    /// Recent times to first token, in ms.
    took: VecDeque<f64>,
    /// The latest turns of known conversations on all workers.
    #[serde(default)]
    sample: VecDeque<Sampled>,
    turns: f64,
    behind: f64,
    late_behind: f64,
    #[serde(skip)]
    workers: Vec<OfWorker>,
    #[serde(skip)]
    scratch: Vec<f64>,
    #[serde(skip)]
    target: Option<f64>,
    /// Mean objective of `sample`, in ms, as of the last refresh.
    #[serde(skip)]
    mean_objective: f64,
    #[serde(skip)]
    since: usize,
}

/// A copy of a silent conversation, as far as the lateness of its next turn depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silent {
    pub(super) length: Tokens,
    pub(super) objective: Millis,
}

/// The estimates for the copies of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnWorker<'a> {
    fleet: &'a LatenessCost,
    /// T and the worker's cost; `None` before both are known.
    known: Option<(f64, PrefillCost)>,
    own: Option<&'a VecDeque<Sampled>>,
    /// Number of the fleet's turns used where the worker has too few.
    borrowed: usize,
}

impl LatenessCost {
    /// Restores the estimates of another process where fewer turns were observed here. Ignores numbers that no
    /// observations can have led to. Returns whether they are in force.
    pub(super) fn restore(&mut self, kept: &Self) -> bool {
        let sound = |number: &f64| (0.0..=1e12).contains(number);
        let means = [kept.turns, kept.behind, kept.late_behind];
        let sampled = kept
            .sample
            .iter()
            .flat_map(|turn| [turn.wait_ms, turn.added, turn.history, turn.objective_ms]);
        let is_sound = means.iter().chain(&kept.took).all(sound)
            && sampled.into_iter().all(|number| sound(&number))
            && kept.turns <= MEMORY as f64
            && kept.took.len() <= MEMORY
            && kept.sample.len() <= SAMPLED;
        if !is_sound || kept.turns <= self.turns {
            return false;
        }
        *self = Self {
            workers: std::mem::take(&mut self.workers),
            ..kept.clone()
        };
        self.refresh();
        true
    }

    pub(super) fn admit(&mut self, worker: WorkerId) {
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, OfWorker::default);
        }
        self.workers[worker.index()] = OfWorker::default();
    }

    pub(super) fn begun(&mut self, worker: WorkerId, turn: &Begun) {
        let target = self.target.unwrap_or(turn.objective.0);
        let Some(own) = self.workers.get_mut(worker.index()) else {
            return;
        };
        // Each turn of a busy period waits behind all earlier ones, so its rank is the number of turns ahead of it.
        own.rank = if turn.wait.0 > 1e-6 { own.rank + 1.0 } else { 0.0 };
        let late = if turn.ttft.0 > target { own.rank } else { 0.0 };
        self.turns = (self.turns + 1.0).min(MEMORY as f64);
        self.behind += (own.rank - self.behind) / self.turns;
        self.late_behind += (late - self.late_behind) / self.turns;
        own.cost = Some(turn.cost);
        remember(&mut self.took, MEMORY, turn.ttft.0);
        if turn.history > Tokens::ZERO {
            let sampled = Sampled {
                wait_ms: turn.wait.0,
                added: turn.prompt.saturating_sub(turn.history).as_f64(),
                history: turn.history.min(turn.prompt).as_f64(),
                objective_ms: turn.objective.0,
            };
            remember(&mut own.sample, SAMPLED, sampled);
            remember(&mut self.sample, SAMPLED, sampled);
        }
        self.since += 1;
        if self.since >= REFRESH_EVERY {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        self.since = 0;
        let objectives: f64 = self.sample.iter().map(|turn| turn.objective_ms).sum();
        self.mean_objective = objectives / self.sample.len().max(1) as f64;
        if self.took.len() >= ENOUGH {
            self.scratch.clear();
            self.scratch.extend(&self.took);
            let at = ((self.scratch.len() - 1) as f64 * IN_TIME) as usize;
            let (_, target, _) = self.scratch.select_nth_unstable_by(at, f64::total_cmp);
            self.target = Some(*target);
        }
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

    /// Returns the estimates for the copies of this worker.
    pub(super) fn on(&self, worker: WorkerId) -> OnWorker<'_> {
        let own = self.workers.get(worker.index());
        let seen = own.map_or(0, |own| own.sample.len());
        OnWorker {
            fleet: self,
            known: self.target.zip(own.and_then(|own| own.cost)),
            own: own.map(|own| &own.sample),
            borrowed: self.sample.len().min(SAMPLED - seen),
        }
    }

    /// Returns s: the weight of missing this objective.
    fn strictness(&self, objective_ms: f64) -> f64 {
        (self.mean_objective / objective_ms.max(1e-3)).sqrt()
    }

    fn beside(&self) -> f64 {
        self.late_behind + MU * (1.0 + self.behind)
    }
}

impl<'a> OnWorker<'a> {
    pub(super) fn kappa(&self) -> f64 {
        self.fleet.kappa()
    }

    pub(super) fn epsilon(&self) -> f64 {
        self.fleet.epsilon()
    }

    /// Returns the worker's own turns, and the fleet's latest where these are few.
    fn sample(&self) -> impl Iterator<Item = &'a Sampled> + use<'a> {
        let fleet = &self.fleet.sample;
        let borrowed = fleet.range(fleet.len() - self.borrowed..);
        self.own.into_iter().flatten().chain(borrowed)
    }

    fn sampled(&self) -> f64 {
        (self.own.map_or(0, VecDeque::len) + self.borrowed) as f64
    }

    /// Returns P for a returning turn with `missing` tokens of its history missing; 1 before any estimate.
    pub(super) fn late(&self, copy: &Silent, missing: f64) -> f64 {
        let Some((target, cost)) = self.known.filter(|_| self.sampled() > 0.0) else {
            return 1.0;
        };
        let (length, objective) = (copy.length.as_f64(), copy.objective.0);
        let gamma = cost.gamma_ms_per_token2;
        // The prefill of `q` added and the missing tokens is `line + q·(slope + γ·q/2)`.
        let line = cost.beta_ms + lost_ms(&cost, length, missing);
        let slope = cost.alpha_ms_per_token + gamma * length;
        let (mut beyond, mut missed) = (0_u32, 0_u32);
        self.sample().for_each(|turn| {
            let prefill = line + turn.added * (slope + turn.added * gamma / 2.0);
            let took = turn.wait_ms + prefill.max(cost.floor_ms);
            beyond += u32::from(took > target);
            missed += u32::from(took > objective);
        });
        let strictness = self.fleet.strictness(objective);
        (f64::from(beyond) + strictness * f64::from(missed)) / self.sampled()
    }

    /// Returns c: the cost of a token after `kept` tokens, relative to the first of a prompt.
    pub(super) fn per_token(&self, kept: f64) -> f64 {
        let ratio = self.known.map_or(0.0, |(_, cost)| {
            cost.gamma_ms_per_token2 / cost.alpha_ms_per_token.max(1e-9)
        });
        1.0 + ratio * kept.max(0.0)
    }

    /// Returns the cost of one return with `missing` tokens missing, per token: `c·[P + ε + μ(1 + κ)]`.
    pub(super) fn of_return(&self, copy: &Silent, missing: f64) -> f64 {
        let kept = copy.length.as_f64() - missing;
        self.per_token(kept) * (self.late(copy, missing) + self.fleet.beside())
    }

    /// Returns the most missing tokens, from `least` to `most`, at which a return costs at most `harm`, by the cost of a
    /// token where `least` are missing; `least` if none does.
    pub(super) fn missing_worth(&self, copy: &Silent, harm: f64, least: u64, most: u64) -> u64 {
        let per_token = self.per_token(copy.length.as_f64() - least as f64);
        let late = harm / per_token - self.fleet.beside();
        let allows = |missing: u64| self.late(copy, missing as f64) <= late;
        if most <= least || allows(most) {
            return most.max(least);
        }
        let (mut low, mut high) = (least, most);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if allows(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the missing tokens at which the cost of a return rises, in order from 0, and its cost beyond them, for a
    /// conversation of which nothing is known: the sampled turns stand for it, with their histories and objectives.
    pub(super) fn steps(&self) -> Vec<(f64, f64)> {
        let Some((target, cost)) = self.known.filter(|_| self.sampled() > 0.0) else {
            return Vec::new();
        };
        let mut steps = Vec::with_capacity(2 * SAMPLED + 1);
        let mut whole = 0.0;
        for turn in self.sample() {
            let weight = self.per_token(turn.history) / self.sampled();
            whole += weight * self.fleet.beside();
            for (threshold, of_threshold) in [
                (target, 1.0),
                (turn.objective_ms, self.fleet.strictness(turn.objective_ms)),
            ] {
                steps.push((missing_until(&cost, turn, threshold), weight * of_threshold));
            }
        }
        steps.push((0.0, whole));
        steps.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        whole = 0.0;
        for (_, cost) in &mut steps {
            whole += *cost;
            *cost = whole;
        }
        steps
    }
}

/// Returns `α·u + γ·u·(h + u/2)` for `missing` tokens at the end of `length`, of which the others, h, are cached.
fn lost_ms(cost: &PrefillCost, length: f64, missing: f64) -> f64 {
    missing * (cost.alpha_ms_per_token + cost.gamma_ms_per_token2 * (length - missing / 2.0))
}

/// Returns the most tokens of its history that the turn can lack and still start within `threshold`.
fn missing_until(cost: &PrefillCost, turn: &Sampled, threshold: f64) -> f64 {
    let PrefillCost {
        alpha_ms_per_token: alpha,
        beta_ms: beta,
        gamma_ms_per_token2: gamma,
        floor_ms: floor,
    } = *cost;
    let allowed = threshold - turn.wait_ms;
    let slope = alpha + gamma * turn.history;
    let room = allowed - beta - turn.added * (slope + gamma * turn.added / 2.0);
    if room <= 0.0 || allowed < floor {
        return 0.0;
    }
    // The smaller root of `slope·u − γ/2·u² = room`.
    let square = slope * slope - 2.0 * gamma * room;
    let root = if square < 0.0 {
        f64::INFINITY
    } else {
        2.0 * room / (slope + square.sqrt())
    };
    if root > turn.history { f64::INFINITY } else { root }
}

fn remember<T>(of: &mut VecDeque<T>, most: usize, turn: T) {
    of.push_back(turn);
    if of.len() > most {
        of.pop_front();
    }
}
