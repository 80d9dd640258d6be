//! The deciding term of a routing decision.
//!
//! For policies that minimise a cost, it is the term by which the chosen worker was furthest ahead of the other: the
//! other terms together did not outweigh it. For any other policy it is the reason that the decision gives.

use policy::route::{Decision, Part, PolicyName, Settings, Terms, parts};
use policy::units::Tokens;
use serde::Serialize;

/// The reason why one worker was chosen over another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct DecidingTerm {
    /// Name of the term; the policy's reason; `tie`; or, for the same worker, `same_worker_queue` or
    /// `same_worker_cache`.
    pub(super) term: &'static str,
    /// The chosen worker's cost in that term less the other's, so negative; for the same worker, how much longer the
    /// turn waited or computed. Absent for a reason that is not a cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ms: Option<f64>,
}

impl DecidingTerm {
    pub(super) const UNKNOWN: Self = Self::named("unknown");

    const fn named(term: &'static str) -> Self {
        Self { term, ms: None }
    }

    pub(super) const fn new(term: &'static str, ms: f64) -> Self {
        Self { term, ms: Some(ms) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Scored {
    pub(super) worker: String,
    pub(super) chosen: bool,
    /// Prompt tokens that the router believed to be cached on the worker.
    pub(super) cached: Tokens,
    /// Value that the policy minimised; `null` if it excluded the worker.
    pub(super) score: f64,
    /// Cost by term, which makes up the score of `tail` and `least_ttft`.
    pub(super) terms: Vec<Part>,
}

/// Returns why the chosen worker was preferred to `other`.
pub(super) fn verdict(decision: &Decision, other: usize, settings: &Settings) -> DecidingTerm {
    if !matches!(settings.policy, PolicyName::Tail | PolicyName::LeastTtft) {
        return DecidingTerm::named(decision.reason.as_str());
    }
    let Some(other) = decision.terms.get(other).filter(|terms| terms.ready) else {
        return DecidingTerm::named("not_ready");
    };
    let ours = parts(decision.chosen(), settings);
    let differences = ours.iter().zip(parts(other, settings));
    differences
        .map(|(ours, theirs)| (ours.name, ours.ms - theirs.ms))
        .filter(|(_, difference)| *difference < 0.0)
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map_or(DecidingTerm::named("tie"), |(term, difference)| {
            DecidingTerm::new(term, difference)
        })
}

pub(super) fn scored(
    decision: &Decision,
    settings: &Settings,
    name: impl Fn(usize) -> String,
) -> Vec<Scored> {
    let one = |(at, terms): (usize, &Terms)| Scored {
        worker: name(at),
        chosen: at == decision.chosen,
        cached: terms.cached,
        score: terms.score,
        terms: parts(terms, settings),
    };
    decision.terms.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use policy::cost::PrefillCost;
    use policy::ids::WorkerId;
    use policy::route::{self, Snapshot, WorkerView};
    use policy::units::Millis;

    use super::*;

    fn worker(id: u32, wait: f64) -> WorkerView {
        WorkerView {
            id: WorkerId(id),
            ready: true,
            cost: PrefillCost::linear(1.0, 5.0),
            overhead: Millis::ZERO,
            wait: Millis(wait),
            utilisation: 0.5,
            mean_work: Millis(100.0),
            in_flight: 0,
            indexed: Tokens::ZERO,
            conversations: 0.0,
        }
    }

    fn decide(settings: &Settings, waits: [f64; 2], resident: [u64; 2]) -> Decision {
        let turn = route::Turn {
            prompt: Tokens(200),
            resident: &resident.map(Tokens),
            objective: Millis(100.0),
            last_worker: Some(WorkerId(1)),
            conversation: None,
            head: None,
            class: "",
            ask: None,
        };
        let snapshot = Snapshot {
            workers: &[worker(0, waits[0]), worker(1, waits[1])],
            settings,
            sequence: 0,
        };
        route::decide(&snapshot, &turn).unwrap()
    }

    #[test]
    fn the_parts_of_a_cost_add_up_to_the_score() {
        let mut settings = Settings::default();
        settings.weights.load = 1.5;
        settings.weights.slo = 0.3;
        settings.weights.affinity_ms = 7.0;
        settings.weights.spread_ms = 3.0;
        for policy in [PolicyName::Tail, PolicyName::LeastTtft] {
            settings.policy = policy;
            for terms in decide(&settings, [40.0, 90.0], [0, 150]).terms {
                let sum: f64 = parts(&terms, &settings).iter().map(|term| term.ms).sum();
                assert!(
                    (sum - terms.score).abs() < 1e-9,
                    "{policy}: {sum} {}",
                    terms.score
                );
            }
        }
    }

    #[test]
    fn the_term_in_which_the_chosen_worker_was_ahead_by_most_decided() {
        let settings = Settings {
            policy: PolicyName::LeastTtft,
            ..Settings::default()
        };
        let queue = verdict(&decide(&settings, [0.0, 190.0], [0, 150]), 1, &settings);
        assert_eq!((queue.term, queue.ms), ("wait", Some(-190.0)));
        let cache = verdict(&decide(&settings, [0.0, 140.0], [0, 150]), 0, &settings);
        assert_eq!((cache.term, cache.ms), ("prefill", Some(-150.0)));
        let same = verdict(&decide(&settings, [0.0, 0.0], [0, 0]), 1, &settings);
        assert_eq!((same.term, same.ms), ("tie", None));
    }

    #[test]
    fn a_rule_that_is_no_sum_says_its_reason() {
        let settings = Settings {
            policy: PolicyName::RoundRobin,
            ..Settings::default()
        };
        let verdict = verdict(&decide(&settings, [0.0, 0.0], [0, 0]), 1, &settings);
        assert_eq!((verdict.term, verdict.ms), ("rotation", None));
    }
}
