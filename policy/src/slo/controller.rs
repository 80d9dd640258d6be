//! Adaptive ξ: how much of the free tail to give away, learned from what each choice would have done.
//!
//! # The problem
//! T-LRU's tail `ξ − Q̂` is right for a known next prompt, an idle worker and a cache that is worth fighting for. None
//! holds in general: prompts vary, tokens given away are computed again by a worker that has others waiting, and where
//! short conversations come back and long ones do not, protecting the long ones only keeps dead weight. On one trace
//! the full tail moved p95 by −9 % in a tight cache and the mean by +19 % in a roomy one.
//!
//! # The rule
//! Arms: the tail times a scale, from 0 (plain LRU) to 2. Each arm has a [`Ghost`] of the fleet's caches that is told
//! that arm's budgets, so for every turn it is known what each arm would have computed:
//! `ttft_a = wait + β + α·u_a + γ·u_a·(h_a + u_a/2)`. Over an exponential window the controller keeps each arm's excess
//! over the objective (TEL), its violations and its work, and takes the arm of least TEL among those that are
//! affordable:
//!
//! ```text
//! κ·(work_a − work_LRU) ≤ δ(ρ)·work_LRU,    κ = 1 + ρ/(1 − ρ)
//! ```
//!
//! That is the load gate of [`super::load_gate`] put on what it is about: not on trimming but on the *work* that trimming
//! adds. Where a tail saves work (a tight cache: it does) it is given away at any load; where it costs work, δ(ρ) lets it
//! through on an idle fleet only. Below ρ = 0.1 nobody else waits, and any work is affordable that keeps the fleet idle:
//! three times what LRU does. From 0.3 on it is 0.5 %, which is as well as arms can be told apart; and from 0.6 on an arm
//! has to *save* 0.5 % to be taken.
//!
//! Nothing is bought that nobody asked for: where plain LRU already leaves fewer than `MET` of the turns late, δ is what
//! it is under load. Agents' contexts are nearly all cached and their turns short; the few that are late are the cold
//! first ones, which no cache can help. Without this their p95 on an idle fleet was 252 ms instead of 111.
//!
//! # Why not an integrator on the share of violations
//! Because it has no sign: violations fall and then rise again with ξ, so an integrator that sees too many of them does
//! not know which way to go, and winds up while it finds out. Measured arms have nothing to wind up. The arm in force
//! changes only for one that is better by a margin (hysteresis), at intervals, and always to a scale within bounds.
//!
//! The start is the design point, scale 1: `ξ_s = T − β − wait`. A change of α moves the tail at once, since ξ_w is
//! computed per turn from the worker's cost; only the scale has to be learned again.

use serde::Serialize;

use super::ghost::Ghost;
use super::{TailRule, load_gate};
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::units::{Millis, Tokens};

/// Scales of the tail. Bounds and resolution of the control.
const SCALES: [f64; 9] = [0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.6];
/// The arm to begin with.
const START: usize = 6;
/// Turns that the window remembers.
const WINDOW: f64 = 1500.0;
/// Turns between two decisions, and before the first: under load, and on an idle fleet, where a wrong arm delays nobody
/// but a slow start is all that there is to lose.
const EVERY: u64 = 32;
const LEAST: f64 = 128.0;
const IDLE_EVERY: u64 = 8;
const IDLE_LEAST: f64 = 32.0;
/// A new arm has to have less TEL than the one in force by this share of the prefill work; on an idle fleet of its TEL, if
/// that is less. Where others wait TEL is mostly waiting, which no arm is to blame for; on an idle worker it is a few per
/// cent of the work, and a share of the work was what cost the most TEL.
const MARGIN: f64 = 0.004;
const MARGIN_OF_TEL: f64 = 0.001;
/// Arms within this share of the prefill work (or that share of the TEL) of the least TEL are as good.
const TIE: f64 = 0.002;
/// Cost of the mean that is allowed where others wait, and what has to be saved where many do.
const ALLOWANCE: f64 = 0.005;
/// Growth of the work that is allowed on an idle fleet.
const FREE: f64 = 3.0;
/// Share of turns beyond the objective under plain LRU up to which the objective counts as met: the usual "95 % of
/// turns". At half of it an agents' fleet at load 1 had a p95 of 210 ms instead of 119.
const MET: f64 = 0.05;
/// Utilisation up to which that is allowed, and from which only the allowance is.
const FREE_UP_TO: f64 = 0.1;
const STRICT_FROM: f64 = 0.3;

/// A turn that was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedTurn {
    /// The worker that served it.
    pub worker: WorkerId,
    /// The conversation.
    pub conversation: u64,
    /// Tokens of the whole prompt.
    pub prompt: Tokens,
    /// Tokens of it that were said before: what a cache could have held.
    pub history: Tokens,
    /// L: the conversation's tokens after the answer.
    pub length: Tokens,
    /// Cost of prefill on the worker that served it.
    pub cost: PrefillCost,
    /// Time it waited before its prefill.
    pub wait: Millis,
    /// The objective of its class.
    pub objective: Millis,
    /// Q̂ of its class.
    pub next_prompt: Tokens,
    /// ρ of the worker that served it.
    pub utilisation: f64,
}

#[derive(Clone, Debug)]
struct Arm {
    scale: f64,
    /// One per worker.
    ghosts: Vec<Ghost>,
    tel_ms: f64,
    sum_ms: f64,
    work_ms: f64,
    violations: f64,
}

/// One arm, as it explains itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArmState {
    /// Multiplies the tail.
    pub scale: f64,
    /// Mean excess over the objective per turn of the window.
    pub tel_ms: f64,
    /// Mean TTFT.
    pub mean_ms: f64,
    /// Mean prefill.
    pub work_ms: f64,
    /// Share of turns beyond the objective.
    pub violations: f64,
    /// Whether the mean that it costs is allowed at this load.
    pub affordable: bool,
}

/// Why the controller does what it does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControllerState {
    /// The arm in force.
    pub current: usize,
    /// Turns in the window.
    pub turns: f64,
    /// ρ over the window.
    pub utilisation: f64,
    /// κ at that ρ.
    pub kappa: f64,
    /// Growth of the work that is allowed; negative where work has to be saved.
    pub allowance: f64,
    /// How often another arm was taken.
    pub changes: u64,
    /// Every arm.
    pub arms: Vec<ArmState>,
}

/// The controller of one fleet (or of one pool of equal workers).
#[derive(Clone, Debug)]
pub struct Controller {
    arms: Vec<Arm>,
    current: usize,
    turns: f64,
    seen: u64,
    utilisation: f64,
    changes: u64,
    /// Conversations whose hash is at most this are followed.
    sampled: u64,
}

impl Controller {
    /// For workers with caches of these capacities, in the order of their slots; about `sample` (0 to 1) of the
    /// conversations are followed, on ghosts as much smaller.
    #[must_use]
    pub fn new(capacities: &[Tokens], sample: f64) -> Self {
        let sample = sample.clamp(1e-6, 1.0);
        let arm = |&scale: &f64| Arm {
            scale,
            ghosts: capacities
                .iter()
                .map(|capacity| Ghost::new((capacity.as_f64() * sample) as u64))
                .collect(),
            tel_ms: 0.0,
            sum_ms: 0.0,
            work_ms: 0.0,
            violations: 0.0,
        };
        Self {
            arms: SCALES.iter().map(arm).collect(),
            current: START,
            turns: 0.0,
            seen: 0,
            utilisation: 0.0,
            changes: 0,
            sampled: (sample * u64::MAX as f64) as u64,
        }
    }

    /// Learns from a turn.
    pub fn served(&mut self, turn: &ServedTurn) {
        if spread(turn.conversation) > self.sampled {
            return;
        }
        let keep = 1.0 - 1.0 / WINDOW;
        self.turns = self.turns * keep + 1.0;
        self.utilisation += (turn.utilisation - self.utilisation) / self.turns.min(WINDOW / 4.0);
        let xi = super::xi_tokens(&turn.cost, turn.objective, Millis::ZERO, turn.prompt);
        let tail = (xi - turn.next_prompt.as_f64()).clamp(0.0, 1e9);
        for arm in &mut self.arms {
            let Some(ghost) = arm.ghosts.get_mut(turn.worker.index()) else {
                return;
            };
            let held = ghost.resident(turn.conversation).min(turn.history.0);
            let cached = Tokens(held.min(turn.prompt.0.saturating_sub(1)));
            let work = turn.cost.prefill(turn.prompt.saturating_sub(cached), cached).0;
            let ttft = turn.wait.0 + work;
            let excess = (ttft - turn.objective.0).max(0.0);
            arm.tel_ms = arm.tel_ms * keep + excess;
            arm.sum_ms = arm.sum_ms * keep + ttft;
            arm.work_ms = arm.work_ms * keep + work;
            arm.violations = arm.violations * keep + f64::from(u8::from(excess > 0.0));
            let budget = turn.length.0.saturating_sub((tail * arm.scale) as u64);
            ghost.served(turn.conversation, turn.length.0, budget);
        }
        self.seen += 1;
        let (least, every) = if self.is_idle() {
            (IDLE_LEAST, IDLE_EVERY)
        } else {
            (LEAST, EVERY)
        };
        if self.turns >= least && self.seen.is_multiple_of(every) {
            self.decide();
        }
    }

    /// Tokens at the end of a conversation that a worker may drop first.
    #[must_use]
    pub fn tail(&self, xi_tokens: f64, next_prompt: Tokens, utilisation: f64) -> Tokens {
        self.rule().tail(xi_tokens, next_prompt, utilisation)
    }

    /// What follows from the arm in force, for whoever chooses while this learns.
    #[must_use]
    pub fn rule(&self) -> TailRule {
        let arm = &self.arms[self.current];
        // What saves work needs no gate; what costs work has one, and none of it is known before the window fills.
        let saves = self.turns >= LEAST && arm.work_ms <= self.arms[0].work_ms;
        TailRule {
            scale: arm.scale,
            gated: !saves,
        }
    }

    /// Why it does what it does.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        let n = self.turns.max(1.0);
        let arms = self.arms.iter().map(|arm| ArmState {
            scale: arm.scale,
            tel_ms: arm.tel_ms / n,
            mean_ms: arm.sum_ms / n,
            work_ms: arm.work_ms / n,
            violations: arm.violations / n,
            affordable: self.affordable(arm),
        });
        ControllerState {
            current: self.current,
            turns: self.turns,
            utilisation: self.utilisation,
            kappa: self.kappa(),
            allowance: self.allowance(),
            changes: self.changes,
            arms: arms.collect(),
        }
    }

    fn decide(&mut self) {
        let affordable = |at: &usize| self.affordable(&self.arms[*at]);
        let tel = |at: usize| self.arms[at].tel_ms;
        let idle = self.is_idle();
        let within = |of_work: f64, tel: f64| {
            let of_work = of_work * self.arms[0].work_ms;
            if idle {
                of_work.min(MARGIN_OF_TEL * tel)
            } else {
                of_work
            }
        };
        let least = (0..self.arms.len())
            .filter(affordable)
            .map(tel)
            .fold(f64::INFINITY, f64::min);
        // Of arms that can hardly be told apart the one that gives least away.
        let best = (0..self.arms.len())
            .filter(affordable)
            .find(|&at| tel(at) <= least + within(TIE, least));
        let Some(best) = best else { return };
        let current = &self.arms[self.current];
        // Away from the arm in force: to one that is better, or as good and gives less away.
        let better = tel(best) < current.tel_ms - within(MARGIN, current.tel_ms) || best < self.current;
        if best != self.current && (better || !self.affordable(current)) {
            self.current = best;
            self.changes += 1;
        }
    }

    /// Nobody waits for anybody.
    fn is_idle(&self) -> bool {
        self.utilisation <= FREE_UP_TO
    }

    fn affordable(&self, arm: &Arm) -> bool {
        let added = arm.work_ms - self.arms[0].work_ms;
        // A saving is taken at its face value: it is measured, what it would spare the others is not.
        let charged = if added > 0.0 { self.kappa() * added } else { added };
        arm.scale == 0.0 || charged <= self.allowance() * self.arms[0].work_ms
    }

    fn kappa(&self) -> f64 {
        1.0 / (1.0 - self.utilisation.clamp(0.0, 0.9))
    }

    fn allowance(&self) -> f64 {
        let strict = ((self.utilisation - FREE_UP_TO) / (STRICT_FROM - FREE_UP_TO)).clamp(1e-9, 1.0);
        let met = self.arms[0].violations <= MET * self.turns;
        let strict = if met { 1.0 } else { strict };
        (ALLOWANCE / strict).min(FREE) - 2.0 * ALLOWANCE * (1.0 - load_gate(self.utilisation))
    }
}

/// SplitMix64's finaliser: which conversations are followed must not depend on how they are numbered.
fn spread(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
