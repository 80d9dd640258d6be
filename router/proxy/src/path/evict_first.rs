//! The tail of a conversation that the worker of a turn may evict first.

use policy::tail::Class;
use policy::units::Tokens;

use super::turn::Turn;
use fleet::Worker;
use fleet::dialect::is_told;
use state::Routing;

/// More tokens than any conversation has.
const EVERYTHING: Tokens = Tokens(1_000_000_000);

/// Returns the tail that the worker may evict first: that of the engine's own rule if it trims by itself; zero if it gets
/// no hints; all of a conversation that ends; zero if the worker takes hints between requests; else the free tail of the
/// turn's class.
pub(super) fn evict_first(routing: &Routing, turn: &Turn, worker: &Worker, prompt: Tokens) -> Tokens {
    let (hints, dialect) = (&routing.config.hints, worker.dialect());
    let (is_told, by_itself) = (is_told(&*dialect, hints), dialect.trims_by_itself());
    if !is_told && !by_itself {
        return dialect.evict_first(Tokens::ZERO);
    }
    if turn.last && !by_itself {
        return dialect.evict_first(EVERYTHING);
    }
    if by_itself {
        let told = worker
            .hints
            .sent_objective()
            .unwrap_or_else(|| routing.objective_for(worker));
        return dialect.evict_first(told.tail());
    }
    if routing.makes_room_on(worker) {
        return dialect.evict_first(Tokens::ZERO);
    }
    let added = prompt.saturating_sub(turn.expected.history);
    let class = Class::of(turn.expected.turn, added, turn.expected.class.tools);
    dialect.evict_first(routing.feedback.free_tail(worker.id, class))
}
