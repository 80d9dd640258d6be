//! Adaptive ξ: how much of the free tail to give away, learned from what each choice would have done.
//!
//! # The problem
//! T-LRU's tail `ξ − Q̂` is right for a known next prompt, an idle worker and a cache that is worth fighting for. None
//! holds in general: prompts vary, tokens given away are computed again by a worker that has others waiting, and where
//! short conversations come back and long ones do not, protecting the long ones only keeps dead weight. On one trace
//! the full tail moved p95 by −9 % in a tight cache and the mean by +19 % in a roomy one.
//!
//! # The rule
//! Arms: the tail times a scale, from 0 (plain LRU) to 1.6. Each arm has a [ghost](super::Ghosts) of the fleet's caches that is told
//! that arm's budgets, so for every turn it is known what each arm would have computed:
//! `ttft_a = wait + β + α·u_a + γ·u_a·(h_a + u_a/2)`. These are the miniature simulations of Waldspurger et al. ("Cache
//! Modeling and Optimization using Miniature Simulations", USENIX ATC 2017): the candidates run side by side on the same
//! sample of conversations, in caches as much smaller, and the best is taken. Over a [window](window) of turns the
//! controller compares their excess over the objective (TEL), and takes the least of the arms that are
//!
//! - *affordable*: `κ·(work_a − work_LRU) ≤ δ(ρ)·work_LRU`, with κ = 1 + ρ/(1 − ρ). That is the load gate of
//!   [`super::load_gate`] put on what it is about: not on trimming but on the *work* that trimming adds. Where a tail
//!   saves work (a tight cache: it does) it is given away at any load; where it costs work, δ(ρ) lets it through on an
//!   idle fleet only. Below ρ = 0.1 nobody else waits, and any work is affordable that keeps the fleet idle: three times
//!   what LRU does. From 0.3 on it is 0.5 %, which is as well as arms can be told apart; and from 0.6 on an arm has to
//!   *save* 0.5 % to be taken.
//! - *keeping* what is good already: where 95 % of the turns start in time under plain LRU, as many have to start about as
//!   soon (within a tenth) under the arm. TEL does not see what happens below the objective.
//!   Agents' contexts are nearly all cached and their turns start after 100 of 1,000 ms; the few that are late are cold.
//!   The tail of least TEL let those few be a little less late, at a p95 of 954 ms instead of 116.
//! - *proven*, if plain LRU is in force: the excess that it saves is more than 1.2 standard errors of the difference,
//!   `Σd > 1.2·√Σd²`: more than one lucky turn. What trimming gains shows at once, in the conversation that was not
//!   evicted; what it costs shows when the trimmed ones come back, which for agents is hundreds of turns later.
//!
//! On an idle fleet there are few late turns, and which of two arms has less TEL over a few thousand is mostly which of
//! them met fewer. But TEL hardly differs from one scale to the next, so there an arm is judged by its neighbours as well
//! (where they are near: see `SMOOTH`), and an arm that gives less away, if it is not plain LRU, has to have less TEL to
//! be taken, not only as little. Going to and fro costs what neither arm would: half of the cache is trimmed for the one, half for the other.
//!
//! # A change of cost
//! A ghost's tokens are right whatever they cost. When a worker's α doubles, ξ halves: the tail of scale 1 is now what
//! half of it was. So the window prices its turns anew, and each arm takes over the ghost, and the turns, of the arm whose
//! tail was nearest to what its own is now. The scale in force stays, as ξ_w follows the worker's cost at once.
//!
//! # Why not an integrator on the share of violations
//! Because it has no sign: violations fall and then rise again with ξ, so an integrator that sees too many of them does
//! not know which way to go, and winds up while it finds out. Measured arms have nothing to wind up. The arm in force
//! changes only for one that is better by a margin (hysteresis), at intervals, and always to a scale within bounds.
//!
//! The start is the design point, scale 1: `ξ_s = T − β − wait`. A change of α moves the tail at once, since ξ_w is
//! computed per turn from the worker's cost; only the scale has to be learned again.

mod state;
mod window;

pub use self::state::{ArmState, ControllerState};
use self::window::Window;
use super::{TailRule, ghost, load_gate};
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::units::{Millis, Tokens};

/// Arms, the first of which is plain LRU.
const ARMS: usize = 9;
/// Scales of the tail. Bounds and resolution of the control.
const SCALES: [f64; ARMS] = [0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.6];
/// The arm to begin with.
const START: usize = 6;
/// Turns over which ρ is averaged.
const RHO_OVER: f64 = 375.0;
/// Turns between two decisions, and before the first: under load, and on an idle fleet, where a wrong arm delays nobody
/// but a slow start is all that there is to lose.
const EVERY: u64 = 32;
const LEAST: u64 = 128;
const IDLE_EVERY: u64 = 8;
const IDLE_LEAST: u64 = 32;
/// A new arm has to have less TEL than the one in force by this share of the prefill work; on an idle fleet of its TEL, if
/// that is less. Where others wait TEL is mostly waiting, which no arm is to blame for; on an idle worker it is a few per
/// cent of the work, and a share of the work was what cost the most TEL.
const MARGIN: f64 = 0.004;
const MARGIN_OF_TEL: f64 = 0.001;
/// Arms within this share of the prefill work (or that share of the TEL) of the least TEL are as good.
const TIE: f64 = 0.002;
/// What an arm's neighbours count in its TEL on an idle fleet, where both are within [`NEAR`] of its scale. Further
/// apart TEL is no straight line between them: beyond the whole tail it rises steeply.
const SMOOTH: f64 = 0.8;
const NEAR: f64 = 0.21;
/// Standard errors by which an arm has to be better than plain LRU to take over from it.
const PROOF: f64 = 1.2;
/// How much later than under plain LRU the 95th percentile may be where plain LRU meets the objective. Measured over
/// some thousand turns, which is as well as a percentile is known.
const SLACK: f64 = 1.1;
/// Cost of the mean that is allowed where others wait, and what has to be saved where many do.
const ALLOWANCE: f64 = 0.005;
/// Growth of the work that is allowed on an idle fleet.
const FREE: f64 = 3.0;
/// Utilisation up to which that is allowed, and from which only the allowance is.
const FREE_UP_TO: f64 = 0.1;
const STRICT_FROM: f64 = 0.3;
/// Change of a worker's tail from which arms take over each other's ghosts: less than from one scale to the next.
const REMAP_FROM: f64 = 1.15;

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

/// The controller of one fleet (or of one pool of equal workers).
#[derive(Clone, Debug)]
pub struct Controller {
    workers: Vec<Ghosts>,
    window: Window,
    current: usize,
    seen: u64,
    utilisation: f64,
    changes: u64,
    /// Share of the conversations that are followed, on ghosts as much smaller.
    sample: f64,
    /// Conversations whose hash is at most this are followed.
    sampled: u64,
}

/// One worker's cache under every arm.
#[derive(Clone, Debug)]
struct Ghosts {
    arms: ghost::Ghosts<ARMS>,
    /// What the tails were computed from that the ghosts were told.
    cost: Option<PrefillCost>,
}

impl Controller {
    /// For workers with caches of these capacities, in the order of their slots; about `sample` (0 to 1) of the
    /// conversations are followed, on ghosts as much smaller.
    #[must_use]
    pub fn new(capacities: &[Tokens], sample: f64) -> Self {
        let sample = sample.clamp(1e-6, 1.0);
        Self {
            workers: capacities
                .iter()
                .map(|&capacity| Ghosts::new(capacity, sample))
                .collect(),
            window: Window::new(capacities.len()),
            current: START,
            seen: 0,
            utilisation: 0.0,
            changes: 0,
            sample,
            sampled: (sample * u64::MAX as f64) as u64,
        }
    }

    /// A worker of this capacity takes a slot: the next free one, or one whose last holder is gone.
    pub fn admit(&mut self, worker: WorkerId, capacity: Tokens) {
        if self.workers.len() <= worker.index() {
            self.workers
                .resize_with(worker.index() + 1, || Ghosts::new(Tokens::ZERO, self.sample));
        }
        self.workers[worker.index()] = Ghosts::new(capacity, self.sample);
        self.window.admit(worker);
    }

    /// Learns from a turn.
    pub fn served(&mut self, turn: &ServedTurn) {
        if spread(turn.conversation) > self.sampled {
            return;
        }
        let Some(ghosts) = self.workers.get_mut(turn.worker.index()) else {
            return;
        };
        self.seen += 1;
        self.utilisation += (turn.utilisation - self.utilisation) / (self.seen as f64).min(RHO_OVER);
        let remapped = ghosts.remap(turn);
        let cached = ghosts.served(turn);
        if let Some(from) = remapped {
            self.window.remap(turn.worker, &from);
        }
        let length = if self.is_idle() {
            window::IDLE_LENGTH
        } else {
            window::LENGTH
        };
        self.window.push(turn, cached, length);
        let (least, every) = if self.is_idle() {
            (IDLE_LEAST, IDLE_EVERY)
        } else {
            (LEAST, EVERY)
        };
        if self.seen >= least && self.seen.is_multiple_of(every) {
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
        // What saves work needs no gate; what costs work has one, and none of it is known before the window fills.
        let saves = self.seen >= LEAST && self.added_work(self.current) <= 0.0;
        TailRule {
            scale: SCALES[self.current],
            gated: !saves,
        }
    }

    /// Why it does what it does.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        let n = self.window.len().max(1) as f64;
        let bound = self.bound();
        let arm = |(at, &scale): (usize, &f64)| {
            let sums = self.window.of(at);
            ArmState {
                scale,
                tel_ms: sums.tel_ms / n,
                mean_ms: sums.ttft_ms / n,
                work_ms: sums.work_ms / n,
                violations: sums.late / n,
                affordable: self.affordable(at),
                keeps: self.keeps(at, bound),
                evidence: self.evidence(at),
            }
        };
        ControllerState {
            current: self.current,
            turns: self.window.len() as f64,
            utilisation: self.utilisation,
            kappa: self.kappa(),
            allowance: self.allowance(),
            bound,
            changes: self.changes,
            repriced: self.window.repriced,
            arms: SCALES.iter().enumerate().map(arm).collect(),
        }
    }

    fn decide(&mut self) {
        let bound = self.bound();
        let proven = |at: usize| at == 0 || self.current != 0 || self.evidence(at) >= PROOF;
        // What costs most to find out comes last.
        let may = |at| self.affordable(at) && proven(at) && self.keeps(at, bound);
        let allowed: [bool; ARMS] = std::array::from_fn(may);
        let candidates = || (0..ARMS).filter(|&at| allowed[at]);
        let idle = self.is_idle();
        let tel = |at: usize| {
            if idle {
                self.smoothed(at)
            } else {
                self.window.of(at).tel_ms
            }
        };
        let within = |of_work: f64, tel: f64| {
            let of_work = of_work * self.window.of(0).work_ms;
            if idle {
                of_work.min(MARGIN_OF_TEL * tel)
            } else {
                of_work
            }
        };
        let least = candidates().map(tel).fold(f64::INFINITY, f64::min);
        // Of arms that can hardly be told apart the one that gives least away.
        let Some(best) = candidates().find(|&at| tel(at) <= least + within(TIE, least)) else {
            return;
        };
        // Away from the arm in force: to one that is better; to one that gives less away also if it is hardly so, and to
        // plain LRU if it is as good.
        let current = tel(self.current);
        let hardly = if idle {
            MARGIN_OF_TEL * current
        } else {
            f64::NEG_INFINITY
        };
        let better = tel(best) < current - within(MARGIN, current)
            || (best < self.current && (best == 0 || tel(best) < current - hardly));
        if best != self.current && (better || !allowed[self.current]) {
            self.current = best;
            self.changes += 1;
        }
    }

    /// An arm's TEL, and by [`SMOOTH`] what its near neighbours' say that it should be.
    fn smoothed(&self, at: usize) -> f64 {
        let tel = |at: usize| self.window.of(at).tel_ms;
        let (Some(&below), Some(&above)) = (
            at.checked_sub(1).and_then(|at| SCALES.get(at)),
            SCALES.get(at + 1),
        ) else {
            return tel(at);
        };
        let (down, up) = (SCALES[at] - below, above - SCALES[at]);
        // Plain LRU is no small tail: it is no tail.
        if at == 1 || down > NEAR || up > NEAR {
            return tel(at);
        }
        let line = (tel(at - 1) * up + tel(at + 1) * down) / (down + up);
        (1.0 - SMOOTH) * tel(at) + SMOOTH * line
    }

    /// Prefill that an arm adds to plain LRU's.
    fn added_work(&self, arm: usize) -> f64 {
        self.window.of(arm).work_ms - self.window.of(0).work_ms
    }

    /// Excess that an arm saves against plain LRU, in standard errors.
    fn evidence(&self, arm: usize) -> f64 {
        let (sums, lru) = (self.window.of(arm), self.window.of(0));
        let saved = lru.tel_ms - sums.tel_ms;
        // The sum of squares may be a rounding error below nothing.
        saved / sums.difference2.max(1e-9).sqrt()
    }

    /// Within which multiple of the objective an arm has to serve the share of turns that plain LRU serves in time.
    fn bound(&self) -> Option<f64> {
        self.window.bound().map(|bound| bound * SLACK)
    }

    fn keeps(&self, arm: usize, bound: Option<f64>) -> bool {
        arm == 0 || bound.is_none_or(|bound| self.window.keeps(arm, bound))
    }

    /// Nobody waits for anybody.
    fn is_idle(&self) -> bool {
        self.utilisation <= FREE_UP_TO
    }

    fn affordable(&self, arm: usize) -> bool {
        let added = self.added_work(arm);
        // A saving is taken at its face value: it is measured, what it would spare the others is not.
        let charged = if added > 0.0 { self.kappa() * added } else { added };
        arm == 0 || charged <= self.allowance() * self.window.of(0).work_ms
    }

    fn kappa(&self) -> f64 {
        1.0 / (1.0 - self.utilisation.clamp(0.0, 0.9))
    }

    fn allowance(&self) -> f64 {
        let strict = ((self.utilisation - FREE_UP_TO) / (STRICT_FROM - FREE_UP_TO)).clamp(1e-9, 1.0);
        (ALLOWANCE / strict).min(FREE) - 2.0 * ALLOWANCE * (1.0 - load_gate(self.utilisation))
    }
}

impl Ghosts {
    fn new(capacity: Tokens, sample: f64) -> Self {
        Self {
            arms: ghost::Ghosts::new((capacity.as_f64() * sample) as u64),
            cost: None,
        }
    }

    /// Serves the turn under every arm; returns how much of it each would have held.
    fn served(&mut self, turn: &ServedTurn) -> [u32; ARMS] {
        let tail = tail(turn, &turn.cost);
        let resident = self.arms.resident(turn.conversation);
        let budget = SCALES.map(|scale| turn.length.0.saturating_sub((tail * scale) as u64));
        self.arms.served(turn.conversation, turn.length.0, budget);
        let most = turn.history.0.min(turn.prompt.0.saturating_sub(1));
        resident.map(|held| u32::try_from(held.min(most)).unwrap_or(u32::MAX))
    }

    /// Where the worker's cost has moved so far that arms' tails are nearer to what other arms' were, each arm takes over
    /// the ghost of the nearest. Returns whose.
    fn remap(&mut self, turn: &ServedTurn) -> Option<[usize; ARMS]> {
        let before = self.cost.replace(turn.cost)?;
        let (was, is) = (tail(turn, &before), tail(turn, &turn.cost));
        let ratio = is / was;
        if !ratio.is_finite() || ratio <= 0.0 || (1.0 / REMAP_FROM..REMAP_FROM).contains(&ratio) {
            // Small steps add up: they are held against what the ghosts were told.
            self.cost = Some(before);
            return None;
        }
        let from = SCALES.map(|scale| nearest(scale * ratio));
        self.arms.remap(&from);
        Some(from)
    }
}

/// The whole free tail after a turn, at a cost of prefill.
fn tail(turn: &ServedTurn, cost: &PrefillCost) -> f64 {
    let xi = super::xi_tokens(cost, turn.objective, Millis::ZERO, turn.prompt);
    (xi - turn.next_prompt.as_f64()).clamp(0.0, 1e9)
}

/// The arm whose scale is nearest; only no tail at all is nearest to none.
fn nearest(scale: f64) -> usize {
    let distance = |at: usize| (SCALES[at] - scale).abs();
    if scale <= 0.0 {
        return 0;
    }
    (1..ARMS).fold(
        1,
        |best, at| if distance(at) < distance(best) { at } else { best },
    )
}

/// SplitMix64's finaliser: which conversations are followed must not depend on how they are numbered.
fn spread(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
