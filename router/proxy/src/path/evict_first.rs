//! The tail of a conversation that the worker of a turn may evict first.

use policy::tail::Class;
use policy::units::Tokens;

use super::turn::Turn;
use fleet::Worker;
use fleet::dialect::{OwnTail, is_told};
use state::Routing;

/// More tokens than any conversation has.
const EVERYTHING: Tokens = Tokens(1_000_000_000);

/// Returns the tail that the worker may evict first: that of the engine's own rule if it has one; zero if it gets no
/// hints; all of a conversation that ends; by T-LRU, what ξ leaves over; zero if the worker takes hints between
/// requests; else the free tail of the turn's class.
pub(super) fn evict_first(routing: &Routing, turn: &Turn, worker: &Worker, prompt: Tokens) -> Tokens {
    let (hints, dialect) = (&turn.live.hints, worker.dialect());
    let rule = hints.rule_of(worker.name());
    let told = || worker.hints.sent_tail(routing.clock.now());
    let ours = || routing.feedback.objectives.tail(worker.id);
    if let Some(tail) = dialect.own_tail(&OwnTail {
        told: &told,
        ours: &ours,
    }) {
        return tail;
    }
    if !is_told(&*dialect, rule, hints) {
        return Tokens::ZERO;
    }
    if turn.last {
        return EVERYTHING;
    }
    if rule.is_t_lru() {
        return match dialect.takes_objective() {
            true => told().unwrap_or_default(),
            false => ours(),
        };
    }
    if routing.makes_room_on(worker) {
        return Tokens::ZERO;
    }
    let added = prompt.saturating_sub(turn.expected.history);
    let class = Class::of(turn.expected.turn, added, turn.expected.class.tools);
    routing.feedback.free_tail(worker.id, class)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fleet::dialect::{Dialect, SglangTlru, Silent, Tailroute};
    use fleet::facts::FactSource;
    use fleet::hints::SentObjective;
    use policy::cost::PrefillCost;
    use policy::slo::feedback::{ObservedTurns, WorkerObjective};
    use policy::units::Millis;

    use super::*;
    use crate::testing::Seat;

    /// Case, dialect, objective that the engine accepted last, and tails in the middle and at the end of a conversation.
    type Case = (
        &'static str,
        Arc<dyn Dialect>,
        Option<Arc<SentObjective>>,
        [Tokens; 2],
    );

    fn sglang(settable: bool) -> Arc<dyn Dialect> {
        let info = format!(
            r#"{{"radix_eviction_policy":"tlru","internal_states":[{{"tailroute":{{"tlru_settable":{settable}}}}}],
                "radix_eviction_policy_config":{{"threshold":4000,"next_prompt_estimate":500}}}}"#
        );
        Arc::new(SglangTlru::of(info.as_bytes()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_mirror_trims_by_what_the_engine_goes_by() {
        let told = Some(Arc::new(SentObjective {
            objective: WorkerObjective {
                xi_tokens: 900.0,
                ttft_objective_ms: 500.0,
                mix: Vec::new(),
                observed: ObservedTurns::default(),
                cost: PrefillCost::linear(0.1, 0.0),
            },
            next_prompt_tokens: 200,
            t_lru: true,
        }));
        let cases: [Case; 6] = [
            (
                "by hints",
                Arc::new(Tailroute::by_header()),
                None,
                [Tokens::ZERO, EVERYTHING],
            ),
            (
                "not at all",
                Arc::new(Silent { trims: false }),
                None,
                [Tokens::ZERO; 2],
            ),
            ("at its start's threshold", sglang(false), None, [Tokens(3500); 2]),
            (
                "which cannot be set",
                sglang(false),
                told.clone(),
                [Tokens(3500); 2],
            ),
            (
                "before the first objective",
                sglang(true),
                None,
                [Tokens(3500); 2],
            ),
            (
                "by the objective it was sent",
                sglang(true),
                told,
                [Tokens(700); 2],
            ),
        ];
        for (case, dialect, told, expected) in cases {
            let seat = Seat::new();
            let worker = seat.worker("a");
            worker
                .facts
                .learn_dialect(Millis::ZERO, dialect, FactSource::Probed);
            if let Some(told) = told {
                worker.hints.took(Millis::ZERO, told);
            }
            let tail = |last| {
                let turn = Turn {
                    last,
                    ..seat.turn("hi")
                };
                evict_first(&seat.proxy.state.routing, &turn, &worker, Tokens(1_000))
            };
            assert_eq!([tail(false), tail(true)], expected, "{case}");
        }
    }
}
