//! `cache_aware`: SGLang's rule, as published with the SGLang router.
//!
//! If the load is out of balance (`max − min > abs` and `max > rel·min`, in requests in flight), the idlest worker;
//! else, if some worker holds more than `match_threshold` of the prompt, the one that holds most of it; else the worker
//! with the smallest tree, whatever its load. Unlike the original's tree, tailroute's index accounts for evictions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Reason, Snapshot, Terms, Turn};

/// Thresholds of the `cache_aware` policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheAware {
    /// Share of the prompt that a worker must hold to be selected for it.
    #[schemars(range(min = 0, max = 1))]
    pub match_threshold: f64,
    /// The fleet is out of balance if the busiest worker has more than this many requests above the least busy one, and
    /// more than `imbalance_rel` times its requests.
    pub imbalance_abs: u32,
    /// Least ratio of the busiest worker's requests to those of the least busy one at which the fleet can be out of
    /// balance.
    #[schemars(range(min = 1, max = 1e6))]
    pub imbalance_rel: f64,
}

/// The defaults of the SGLang router.
impl Default for CacheAware {
    fn default() -> Self {
        Self {
            match_threshold: 0.5,
            imbalance_abs: 32,
            imbalance_rel: 1.0001,
        }
    }
}

pub(super) fn score(snapshot: &Snapshot<'_>, turn: &Turn<'_>, terms: &mut [Terms]) -> Reason {
    let rule = &snapshot.settings.cache_aware;
    let ready = || snapshot.workers.iter().filter(|worker| worker.ready);
    let busiest = ready().map(|worker| worker.in_flight).max().unwrap_or(0);
    let idlest = ready().map(|worker| worker.in_flight).min().unwrap_or(0);
    let best_match = terms
        .iter()
        .filter(|terms| terms.ready)
        .map(|terms| terms.cached)
        .max()
        .unwrap_or_default();

    let out_of_balance =
        busiest - idlest > rule.imbalance_abs && f64::from(busiest) > rule.imbalance_rel * f64::from(idlest);
    let matched = best_match.as_f64() > rule.match_threshold * turn.prompt.as_f64();
    let reason = match (out_of_balance, matched) {
        (true, _) => Reason::Imbalance,
        (false, true) => Reason::PrefixMatch,
        (false, false) => Reason::SmallestTree,
    };
    for (worker, terms) in snapshot.workers.iter().zip(terms.iter_mut()) {
        terms.score = match reason {
            Reason::Imbalance => f64::from(worker.in_flight),
            Reason::PrefixMatch => -terms.cached.as_f64(),
            _ => worker.indexed.as_f64(),
        };
    }
    reason
}
