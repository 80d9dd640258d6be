//! The threshold ξ that a worker receives, which follows the worker's waits and late turns.
//!
//! On worker w, ξ is the largest number u of uncached tokens with which a turn is expected to meet the objective:
//!
//! ```text
//! wait_q + β + α·u + γ·u·(h + u/2) ≤ objective        ξ = margin · u
//! ```
//!
//! - objective: of the strictest class with traffic on the worker.
//! - wait_q: the quantile of the waits observed there at the share of turns that has to meet the objective. Where the
//!   queue alone takes the objective, ξ is 0 and T-LRU is LRU.
//! - h: the mean cached tokens of a turn there.
//! - margin: from 0 to 1. A turn that is late with no more than ξ uncached tokens lowers it, a turn in time raises it.
//!   The steps balance where the share of late turns is the allowed one (Gibbs and Candès, "Adaptive Conformal
//!   Inference Under Distribution Shift", NeurIPS 2021, equation 2).

use std::collections::VecDeque;

use serde::Serialize;

use super::xi_tokens;
use crate::cost::PrefillCost;
use crate::stats::Sorted;
use crate::units::{Millis, Tokens};

/// Turns from which waits and times are estimated.
pub const WINDOW: usize = 128;
/// Age at which a turn no longer counts.
pub const OLDEST: Millis = Millis(300_000.0);
/// Step of the margin.
pub const STEP: f64 = 0.2;
/// ξ of a worker whose tokens cost nothing.
const MOST_TOKENS: f64 = 1e9;
/// Objectives named in [`WorkerObjective::mix`].
const MIX: usize = 8;

/// The objective of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// The configured objective with this index.
    Configured(usize),
    /// A time that the request states.
    Requested(Millis),
}

/// A turn whose first token was seen.
#[derive(Clone, Copy, Debug)]
pub struct ServedTurn {
    /// Time of the observation.
    pub at: Millis,
    /// Time to first token beyond the prefill.
    pub wait: Millis,
    /// Time to first token.
    pub ttft: Millis,
    /// Prompt tokens that were computed.
    pub uncached: Tokens,
    /// Prompt tokens that were cached.
    pub cached: Tokens,
    /// The turn's objective.
    pub objective: Objective,
}

/// A share of a worker's turns with the same objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ObjectiveShare {
    /// Objective for the time to first token.
    pub ttft_objective_ms: f64,
    /// Share of the turns, from 0 to 1.
    pub share: f64,
}

/// The turns from which a worker's ξ follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ObservedTurns {
    /// Number of turns.
    pub turns: usize,
    /// wait_q: the wait that a turn has to expect.
    pub wait_ms: f64,
    /// Median time to first token.
    pub p50_ms: f64,
    /// 95th percentile of the time to first token.
    pub p95_ms: f64,
    /// Share of turns that missed their objectives.
    pub late_share: f64,
}

/// The objective of a worker, and ξ with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerObjective {
    /// ξ: uncached tokens with which a turn is expected to meet the objective.
    pub xi_tokens: f64,
    /// The strictest objective of a class with traffic on the worker.
    pub ttft_objective_ms: f64,
    /// Objectives by their shares of the turns, the strictest first; at most 8.
    pub mix: Vec<ObjectiveShare>,
    /// Waits and times to first token of the worker's recent turns.
    pub observed: ObservedTurns,
    /// The worker's prefill cost.
    pub cost: PrefillCost,
}

/// Recent turns of one worker, and the margin of its ξ.
#[derive(Clone, Debug)]
pub struct ObjectiveFeedback {
    turns: VecDeque<ServedTurn>,
    margin: f64,
    xi: f64,
}

impl Default for ObjectiveFeedback {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            margin: 1.0,
            xi: 0.0,
        }
    }
}

impl Objective {
    /// Returns the time to first token within which the turn has to start. A configured objective that is gone counts
    /// as the first one.
    fn ttft(self, configured: &[Millis]) -> Millis {
        match self {
            Self::Configured(at) => configured.get(at).map_or(first(configured), |ttft| *ttft),
            Self::Requested(ttft) => ttft,
        }
    }
}

impl ObjectiveFeedback {
    /// Records a turn. `share` is the share of turns that has to meet its objective.
    pub fn served(&mut self, turn: ServedTurn, share: f64, configured: &[Millis]) {
        if turn.ttft <= turn.objective.ttft(configured) {
            self.margin += STEP * (1.0 - share);
        } else if turn.uncached.as_f64() <= self.xi {
            self.margin -= STEP * share;
        }
        self.margin = self.margin.clamp(0.0, 1.0);
        if self.turns.len() == WINDOW {
            self.turns.pop_front();
        }
        self.turns.push_back(turn);
    }

    /// Returns the objective to send to the worker. `configured` are the configured objectives, that of turns without a class
    /// first; it applies while no turn was seen.
    pub fn tell(
        &mut self,
        now: Millis,
        cost: &PrefillCost,
        share: f64,
        configured: &[Millis],
    ) -> WorkerObjective {
        while self.turns.front().is_some_and(|turn| now - turn.at > OLDEST) {
            self.turns.pop_front();
        }
        let mix = self.mix(configured);
        let objective = mix
            .first()
            .map_or(first(configured).0, |one| one.ttft_objective_ms);
        let observed = self.observed(share, configured);
        let cached: f64 = self.turns.iter().map(|turn| turn.cached.as_f64()).sum();
        let cached = Tokens((cached / self.turns.len().max(1) as f64) as u64);
        let most = xi_tokens(cost, Millis(objective), Millis(observed.wait_ms), cached);
        self.xi = (self.margin * most).min(MOST_TOKENS);
        WorkerObjective {
            xi_tokens: self.xi,
            ttft_objective_ms: objective,
            mix,
            observed,
            cost: *cost,
        }
    }

    fn mix(&self, configured: &[Millis]) -> Vec<ObjectiveShare> {
        let times = self.turns.iter().map(|turn| turn.objective.ttft(configured).0);
        let sorted = Sorted::new(times.collect());
        let same = sorted.values().chunk_by(|one, next| one == next);
        same.take(MIX)
            .map(|same| ObjectiveShare {
                ttft_objective_ms: same[0],
                share: same.len() as f64 / self.turns.len() as f64,
            })
            .collect()
    }

    fn observed(&self, share: f64, configured: &[Millis]) -> ObservedTurns {
        let late = |turn: &&ServedTurn| turn.ttft > turn.objective.ttft(configured);
        let waits = Sorted::new(self.turns.iter().map(|turn| turn.wait.0).collect());
        let times = Sorted::new(self.turns.iter().map(|turn| turn.ttft.0).collect());
        ObservedTurns {
            turns: self.turns.len(),
            wait_ms: waits.percentile(100.0 * share),
            p50_ms: times.percentile(50.0),
            p95_ms: times.percentile(95.0),
            late_share: self.turns.iter().filter(late).count() as f64 / self.turns.len().max(1) as f64,
        }
    }
}

fn first(configured: &[Millis]) -> Millis {
    configured.first().copied().unwrap_or(Millis(f64::INFINITY))
}
