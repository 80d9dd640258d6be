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
/// hints; all of a conversation that ends; zero if the worker takes hints between requests; else the free tail of the
/// turn's class.
pub(super) fn evict_first(routing: &Routing, turn: &Turn, worker: &Worker, prompt: Tokens) -> Tokens {
    let (hints, dialect) = (&routing.config.hints, worker.dialect());
    let own = dialect.own_tail(&OwnTail {
        told: &|| worker.hints.sent_objective().map(|told| told.tail()),
        ours: &|| routing.objective_for(worker).tail(),
    });
    if let Some(tail) = own {
        return tail;
    }
    if !is_told(&*dialect, hints) {
        return Tokens::ZERO;
    }
    if turn.last {
        return EVERYTHING;
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
    use policy::units::Millis;

    use super::*;
    use crate::testing::Seat;

    /// Case, dialect, objective that the engine accepted last, and tails in the middle and at the end of a conversation.
    type Case = (&'static str, Arc<dyn Dialect>, Option<SentObjective>, [Tokens; 2]);

    fn sglang(settable: bool) -> Arc<dyn Dialect> {
        let info = format!(
            r#"{{"radix_eviction_policy":"tlru","internal_states":[{{"tailroute":{{"tlru_settable":{settable}}}}}],
                "radix_eviction_policy_config":{{"threshold":4000,"next_prompt_estimate":500}}}}"#
        );
        Arc::new(SglangTlru::of(info.as_bytes()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_mirror_trims_by_what_the_engine_goes_by() {
        let told = Some(SentObjective {
            xi_tokens: 900.0,
            next_prompt_tokens: 200,
        });
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
            ("which cannot be set", sglang(false), told, [Tokens(3500); 2]),
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
            worker.hints.took(told);
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
