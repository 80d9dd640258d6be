//! Which part of which conversation a worker should forget first: queue-aware T-LRU.
//!
//! # The value of a block
//! A turn's time to first token is `wait + β + α·(missing + Q)`, where Q is what its prompt adds. Of a silent conversation
//! whose last `u` tokens are missing, the next block before them is worth what its loss would cost when the conversation
//! returns, times how soon that may be expected:
//!
//! ```text
//! V = G(class, age) · [ P + ε + μ·(1 + κ) ]
//! P = Pr(wait + β + α·(u + Q) > T) + Pr(wait + β + α·(u + Q) > objective)
//! ```
//!
//! - G ([`Returns`]): returns per ms that the block takes room.
//! - P ([`Harm`]): the turn itself is late, by what is usual and by its objective. T is the 93rd percentile of what turns
//!   took lately, so it follows the fleet: there is no scale to be learned. Where the next turn would start in time without
//!   them, the last tokens are worth nothing by this term: they are the free tail of T-LRU ("Tail-Optimized Caching for
//!   LLM Inference").
//! - κ and ε: in a queue a millisecond of prefill delays every turn behind it. κ is how many turns that is on average, ε
//!   how many of them are late. On an idle fleet both are near zero and the rule is T-LRU; on a busy one it evicts the
//!   least expected work.
//! - μ = [`MU`] weighs prefill that makes no turn late, which only the mean shows.
//!
//! # Just in time
//! Engines run LRU with an evict-first band. When a worker's room (blank or marked) falls below a reserve, the ends of least
//! value are marked until the room is twice the reserve ([`Tail::next`]). A marked block that is used before it is evicted
//! costs nothing.
//!
//! # Guard
//! A millisecond that is given up here and there can cost more than LRU's few misses, which no value of a single end shows.
//! So a sample of each cache is followed as LRU would have it, and [`Guard`] compares the turns that were late with those that
//! would have been.
//!
//! The end of least value is sought among [`SAMPLE`] at random, as in hyperbolic caching (Blankstein, Sen, Freedman,
//! USENIX ATC 2017): values age at different speeds, so no order of ends would last.
//!
//! Rejected: a grid of scales of the free tail, compared in ghost caches of conversation lengths. They see no prefix that
//! conversations share, and T-LRU at any scale adds work that a queue pays for. Trimming by the belief alone that a
//! conversation is over: as good where conversations end alike, and nothing elsewhere. P of T alone: where most
//! turns take far less than their objective, as with coding agents, it protects turns that would meet the objective anyway,
//! and is worse than plain LRU under load.

mod class;
mod ends;
mod fill;
mod guard;
mod harm;
mod returns;

#[cfg(test)]
mod tests;

pub use class::Class;
pub use ends::{Trim, Worth};
pub use guard::Guard;
pub use harm::{Begun, Harm, IN_TIME};
pub use returns::{Outcome, Returns, Then};

use self::ends::Ends;
use self::fill::Fill;
use crate::ids::WorkerId;
use crate::units::{Millis, Tokens};

/// μ: the weight of prefill that makes no turn late.
pub const MU: f64 = 0.3;
/// Ends compared at random for the least value.
pub const SAMPLE: usize = 64;
/// Turns that a worker should have room for. More marks the ends of conversations that are about to return.
const RESERVE: f64 = 3.0;
/// Largest share of a cache that is kept free for that.
const MOST_RESERVE: f64 = 0.125;

/// Room that a worker of this capacity should have for the next turns ([`Tail::next_turns`]).
#[must_use]
pub fn reserve(next_turns: Tokens, capacity: Tokens) -> Tokens {
    next_turns.min(Tokens((MOST_RESERVE * capacity.as_f64()) as u64))
}

/// Learned state, and the silent conversations of each worker. `P` is the caller's handle of a conversation.
#[derive(Clone, Debug)]
pub struct Tail<P> {
    returns: Returns,
    harm: Harm,
    fill: Fill,
    guard: Guard,
    workers: Vec<Slot<P>>,
}

#[derive(Clone, Debug)]
struct Slot<P> {
    ends: Ends<P>,
    capacity: Tokens,
    /// The value of what was given up last, smoothed.
    price: f64,
}

impl<P> Default for Tail<P> {
    fn default() -> Self {
        Self {
            returns: Returns::default(),
            harm: Harm::default(),
            fill: Fill::default(),
            guard: Guard::default(),
            workers: Vec::new(),
        }
    }
}

impl<P> Default for Slot<P> {
    fn default() -> Self {
        Self {
            ends: Ends::default(),
            capacity: Tokens::ZERO,
            price: 0.0,
        }
    }
}

/// A turn that is over.
#[derive(Clone, Copy, Debug)]
pub struct Answered<P> {
    /// The time its answer was complete.
    pub at: Millis,
    /// The worker that served it.
    pub worker: WorkerId,
    /// The conversation.
    pub conversation: u64,
    /// The turn's class.
    pub class: Class,
    /// Length of the conversation, answer included.
    pub length: Tokens,
    /// The caller's handle.
    pub what: P,
}

impl<P: Clone> Tail<P> {
    /// A worker takes a slot: nothing is on it.
    pub fn admit(&mut self, worker: WorkerId, capacity: Tokens) {
        let at = worker.index();
        if self.workers.len() <= at {
            self.workers.resize_with(at + 1, Slot::default);
        }
        self.workers[at] = Slot {
            capacity,
            ..Slot::default()
        };
        self.harm.admit(worker);
        self.set_capacity(worker, capacity);
    }

    /// A worker's capacity is known, or known better.
    pub fn set_capacity(&mut self, worker: WorkerId, capacity: Tokens) {
        if let Some(slot) = self.workers.get_mut(worker.index()) {
            slot.capacity = capacity;
            self.fill.room = self.workers.iter().map(|slot| slot.capacity.as_f64()).sum();
        }
    }

    /// A turn was sent to a worker, and the conversation's last one went to `left`, if to another.
    pub fn arrived(&mut self, now: Millis, conversation: u64, worker: WorkerId, left: Option<WorkerId>) {
        self.returns.arrived(now, conversation);
        if let Some(slot) = left.and_then(|left| self.workers.get_mut(left.index())) {
            slot.ends.moved(conversation);
        }
        self.forget(worker, conversation);
    }

    /// A turn's first token passed.
    pub fn begun(&mut self, now: Millis, worker: WorkerId, turn: &Begun) {
        if let Some(compared) = turn.compared
            && let Some(hinted) = self.harm.lateness(turn, compared.hinted)
            && let Some(untold) = self.harm.lateness(turn, compared.untold)
        {
            self.guard.turn(hinted, untold);
        }
        self.harm.begun(worker, turn);
        self.fill.prompt(now, turn.prompt.saturating_sub(turn.cached));
    }

    /// A turn is over, and its conversation silent.
    pub fn answered(&mut self, turn: Answered<P>, response: Tokens) {
        self.fill.response(response);
        if let Some(lifetime) = self.fill.lifetime() {
            self.returns.set_horizon(lifetime);
        }
        self.returns.answered(turn.at, turn.conversation, turn.class);
        if let Some(slot) = self.workers.get_mut(turn.worker.index()) {
            slot.ends.add(turn);
        }
    }

    /// How many tokens should be given up on a worker that has this much room; none if that is enough, or if giving up
    /// does not pay.
    #[must_use]
    pub fn wanted(&self, worker: WorkerId, room: Tokens) -> Option<Tokens> {
        let slot = self.workers.get(worker.index()).filter(|_| self.guard.allows())?;
        let reserve = reserve(self.next_turns(), slot.capacity);
        (room < reserve).then(|| Tokens(2 * reserve.0 - room.0))
    }

    /// Tokens that the turns store for which a worker should have room.
    #[must_use]
    pub fn next_turns(&self) -> Tokens {
        Tokens((RESERVE * self.fill.mean_stored()) as u64)
    }

    /// What to give up next on a worker, where about `need` tokens are wanted; `None` if nothing is left.
    pub fn next(&mut self, now: Millis, worker: WorkerId, need: Tokens) -> Option<Trim<P>> {
        let slot = self.workers.get_mut(worker.index())?;
        let trim = slot.ends.next(now, need, &self.returns, &self.harm)?;
        slot.price += (trim.worth.value - slot.price) / 32.0;
        Some(trim)
    }

    /// Nothing of the conversation is on the worker that could be given up.
    pub fn forget(&mut self, worker: WorkerId, conversation: u64) {
        if let Some(slot) = self.workers.get_mut(worker.index()) {
            slot.ends.remove(conversation);
        }
    }

    /// A worker that drops ends by itself stored this much in a full cache: what went for it sets the price that
    /// [`Tail::free_tail`] goes by.
    pub fn displaced(&mut self, now: Millis, worker: WorkerId, stored: Tokens) {
        let mut left = stored;
        while left > Tokens::ZERO
            && let Some(trim) = self.next(now, worker, left)
        {
            left = left.saturating_sub(trim.end.saturating_sub(trim.keep));
        }
    }

    /// Tokens at the end of a conversation of this class that are worth less, once it is silent, than what was given up
    /// lately: what a request can say where nothing can be said later.
    #[must_use]
    pub fn free_tail(&self, worker: WorkerId, class: Class) -> Tokens {
        if !self.guard.allows() {
            return Tokens::ZERO;
        }
        let price = self.workers.get(worker.index()).map_or(0.0, |slot| slot.price);
        let rate = self.returns.rate(class, Millis::ZERO);
        let tokens = self.harm.missing_worth(price / rate.max(f64::MIN_POSITIVE));
        Tokens(tokens.min(1e9) as u64)
    }

    /// Takes up what another process had learned of returns.
    pub fn restore(&mut self, now: Millis, outcomes: &[Outcome]) {
        self.returns.restore(now, outcomes);
    }

    /// What is known of returns.
    #[must_use]
    pub fn returns(&self) -> &Returns {
        &self.returns
    }

    /// What is known of lateness.
    #[must_use]
    pub fn harm(&self) -> &Harm {
        &self.harm
    }

    /// Whether giving ends up pays.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Silent conversations on a worker.
    #[must_use]
    pub fn silent_on(&self, worker: WorkerId) -> usize {
        self.workers.get(worker.index()).map_or(0, |slot| slot.ends.len())
    }
}
