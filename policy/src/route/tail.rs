//! `tail`: the least cost of a turn, to itself and to the turns behind it.
//!
//! ```text
//! cost_w = load·wait_w + κ_w·x_w + β_w + o_w + home·S̄·(λ_w/λ̄ + C_w/C̄) + slo·over_w − affinity + spread
//! κ_w    = min(κ_max, 1 + locality·ρ̄/(1 − ρ̄)·(wait_w + x_w/2)/S̄),     x_w = α_w·u_w + γ_w·u_w·(h_w + u_w/2)
//! ```
//!
//! o_w is the time to first token beyond queue and prefill ([`super::WorkerView::overhead`]).
//!
//! Why κ: work added to a backlog of W delays the arrivals of the rest of that busy period, `λ·(W + x/2)/(1 − ρ)` of
//! them in expectation, each by its full length x. With `λ = ρ/S̄`, S̄ the mean prefill, the cost is
//! `x·ρ/(1 − ρ)·(W + x/2)/S̄`. For a mean prefill behind a mean backlog this is the familiar first order,
//! `κ = 1 + ρ/(1 − ρ)` (Pollaczek-Khinchine). The exact form adds size: a cold agent's context of 100,000 tokens holds
//! up the twenty warm turns that come during it. Minimising only a turn's own TTFT scatters conversations under load.
//!
//! Why *home*: the conversation's next turns will find their prefix on the worker that serves this one, beside the
//! other conversations there. λ_w, the rate of turns routed to w, measures how often those return, and C_w
//! ([`crate::estimate::ConversationCounts`]) how many may. Both are counted, the turns where they are sent and the
//! conversations at first tokens, so they need no estimate of cache contents. The term is a tie-break between nearly
//! equal workers, never a reason to leave a prefix: agents that start one by one on an idle fleet would otherwise be
//! distributed unevenly. C_w/C̄ stays within [`UNEVEN`] of 1.
//!
//! ρ̄ and S̄ are the fleet's: a per-worker factor on a cost that is the same everywhere sends the longest prompts away
//! from idle workers that were busy a minute ago. That costs 5 to 10 % of p99.

use super::{Costs, Part, PolicyName, Reason, Settings, Snapshot, Terms, Turn, WorkerView, unit_random};

/// Share of C̄ by which C_w may differ. Without it, one new worker of four would get half of the new conversations.
const UNEVEN: f64 = 0.2;

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let weights = &snapshot.settings.weights;
    let fleet = Fleet::of(snapshot.workers);
    for (worker, terms) in snapshot.workers.iter().zip(terms.iter_mut()) {
        let weighted_backlog = weights.locality * fleet.backlog(terms);
        terms.kappa = kappa(fleet.rho, weighted_backlog, snapshot.settings.kappa_max);
        terms.home_ms = weights.home * fleet.crowd(worker);
        terms.slo_ms = weights.slo * (terms.predicted_ttft().0 - turn.objective.0).max(0.0);
        terms.affinity_ms = if turn.last_worker == Some(worker.id) {
            -weights.affinity_ms
        } else {
            0.0
        };
        terms.spread_ms = weights.spread_ms * unit_random(snapshot.sequence, worker.id.0);
        terms.score = weights.load * terms.wait_ms
            + terms.kappa * terms.marginal_ms
            + terms.fixed_ms
            + terms.overhead_ms
            + terms.home_ms
            + terms.slo_ms
            + terms.affinity_ms
            + terms.spread_ms;
    }
    Reason::LeastCost
}

/// Splits one worker's cost into the parts of `tail`'s score, or under another policy, of a plain predicted TTFT.
#[must_use]
pub fn parts(terms: &Terms, settings: &Settings) -> Vec<Part> {
    let load = match settings.policy {
        PolicyName::Tail => settings.weights.load,
        _ => 1.0,
    };
    split(&terms.costs(), load).to_vec()
}

/// Splits a cost; the first four parts are those of the predicted time to first token. `load` weighs the wait.
#[must_use]
pub fn split(costs: &Costs<f64>, load: f64) -> [Part; 9] {
    [
        ("wait", load * costs.wait_ms),
        ("prefill", costs.marginal_ms),
        ("fixed", costs.fixed_ms),
        ("overhead", costs.overhead_ms),
        ("locality", (costs.kappa - 1.0) * costs.marginal_ms),
        ("home", costs.home_ms),
        ("slo", costs.slo_ms),
        ("affinity", costs.affinity_ms),
        ("spread", costs.spread_ms),
    ]
    .map(|(name, ms)| Part { name, ms })
}

/// Means over the ready workers.
#[derive(Clone, Copy, Debug)]
struct Fleet {
    rho: f64,
    mean_work: f64,
    /// λ̄, per millisecond.
    rate: f64,
    living: f64,
}

impl Fleet {
    fn of(workers: &[WorkerView]) -> Self {
        let (mut count, mut rho, mut work, mut rate, mut living) = (0.0f64, 0.0, 0.0, 0.0, 0.0);
        for worker in workers.iter().filter(|worker| worker.ready) {
            count += 1.0;
            rho += worker.utilisation;
            work += worker.mean_work.0;
            rate += turn_rate(worker);
            living += worker.conversations;
        }
        let mean = |sum: f64| sum / count.max(1.0);
        Self {
            rho: mean(rho),
            mean_work: mean(work),
            rate: mean(rate),
            living: mean(living),
        }
    }

    /// Returns `(wait + x/2)/S̄`, the worker's backlog during the turn's prefill, in mean prefills; 1 until S̄ is
    /// known.
    fn backlog(&self, terms: &Terms) -> f64 {
        if self.mean_work > 0.0 {
            (terms.wait_ms + terms.marginal_ms / 2.0) / self.mean_work
        } else {
            1.0
        }
    }

    /// Returns `S̄·(λ_w/λ̄ + C_w/C̄)`: the competition on the worker, in ms; a share is 0 where the fleet's mean is.
    fn crowd(&self, worker: &WorkerView) -> f64 {
        let share = |own: f64, mean: f64| if mean > 0.0 { own / mean } else { 0.0 };
        let turns = share(turn_rate(worker), self.rate);
        let bounded = worker
            .conversations
            .clamp((1.0 - UNEVEN) * self.living, (1.0 + UNEVEN) * self.living);
        self.mean_work * (turns + share(bounded, self.living))
    }
}

/// Returns λ_w = ρ_w/S̄_w: turns routed to a worker, per millisecond.
fn turn_rate(worker: &WorkerView) -> f64 {
    if worker.mean_work.0 > 0.0 {
        worker.utilisation / worker.mean_work.0
    } else {
        0.0
    }
}

/// Returns `min(κ_max, 1 + weighted_backlog·ρ/(1 − ρ))`, where `weighted_backlog` is `locality·(wait + x/2)/S̄`; κ_max
/// from ρ = 1 on, unless `weighted_backlog` is 0.
pub(super) fn kappa(utilisation: f64, weighted_backlog: f64, kappa_max: f64) -> f64 {
    let rho = utilisation.max(0.0);
    if rho >= 1.0 {
        return if weighted_backlog > 0.0 { kappa_max } else { 1.0 };
    }
    (1.0 + weighted_backlog * rho / (1.0 - rho)).min(kappa_max)
}
