//! `tail`: the least cost of serving the turn here, to this turn and to those behind it.
//!
//! ```text
//! cost_w = load·wait_w + κ_w·(α_w·u_w + γ_w·u_w·(h_w + u_w/2)) + β_w + slo·over_w − affinity + spread
//! κ_w    = min(κ_max, 1 + locality·ρ_w/(1 − ρ_w))
//! ```
//!
//! Why κ: a prefill of x ms on a worker with utilisation ρ delays everything queued behind it. In an M/G/1 queue a
//! millisecond of added work per arrival costs the others ρ/(1 − ρ) ms of waiting in expectation (Pollaczek–Khinchine,
//! first order). A router that minimises only the turn's own predicted TTFT ignores that bill and scatters
//! conversations under load; charging it keeps them where their prefix lives, and the more so the busier the fleet is.

use super::{Reason, Snapshot, Terms, Turn, unit_random};

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let weights = &snapshot.settings.weights;
    for (worker, terms) in snapshot.workers.iter().zip(terms.iter_mut()) {
        terms.kappa = kappa(worker.utilisation, weights.locality, snapshot.settings.kappa_max);
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
            + terms.slo_ms
            + terms.affinity_ms
            + terms.spread_ms;
    }
    Reason::LeastCost
}

/// `min(κ_max, 1 + locality·ρ/(1 − ρ))`; a saturated worker has κ_max.
pub(super) fn kappa(utilisation: f64, locality: f64, kappa_max: f64) -> f64 {
    let rho = utilisation.max(0.0);
    if rho >= 1.0 {
        return if locality > 0.0 { kappa_max } else { 1.0 };
    }
    (1.0 + locality * rho / (1.0 - rho)).min(kappa_max)
}
