//! The order in which a worker should give up the ends of silent conversations: queue-aware T-LRU.
//!
//! # The value of a block
//! A turn's time to first token is `wait + β + α·(missing + Q)`, where Q is what its prompt adds. If a silent
//! conversation lacks its last `u` tokens, the value V of the block before them is the rate of returns times the cost
//! of its loss:
//!
//! ```text
//! V = G(class, age) · [ P + ε + μ·(1 + κ) ]
//! P = Pr(wait + β + α·(u + Q) > T) + Pr(wait + β + α·(u + Q) > objective)
//! ```
//!
//! - G ([`Returns`]): returns per ms that the block occupies cache.
//! - P ([`LatenessCost`]): the probabilities that the turn exceeds T and that it misses its objective. T is the 93rd
//!   percentile of recent times to first token, so no scale has to be learned. Where the next turn would start in time
//!   without them, the last tokens are the free tail of T-LRU ("Tail-Optimized Caching for LLM Inference").
//! - κ and ε: the mean numbers of turns, and of late turns, that wait behind one. On an idle fleet both are near zero
//!   and the rule is T-LRU; on a busy one it evicts the least expected work.
//!
//! # Just in time
//! Engines run LRU with an evict-first band. When a worker's room (free or marked) falls below a reserve, the ends of
//! least value are marked until the room is twice the reserve ([`Tail::next`]). The least is sought among [`SAMPLE`]
//! random ends, as in hyperbolic caching (Blankstein, Sen, Freedman, USENIX ATC 2017): values age at different speeds,
//! so a sorted order would not last. Many small losses can exceed LRU's few misses: [`Guard`] compares both.
//!
//! # Rejected
//! - A grid of scales of the free tail, compared in ghost caches of conversation lengths. Those see no prefix that
//!   conversations share, and T-LRU at any scale adds work that a queue pays for.
//! - Trimming by the belief alone that a conversation is over: no gain where conversations do not all end alike.
//! - P of T alone: where most turns take far less than their objective, as with coding agents, it protects turns that
//!   would meet the objective anyway, and is worse than plain LRU under load.

mod class;
mod ends;
mod fill;
mod guard;
mod lateness;
mod returns;

#[cfg(test)]
mod tests;

pub use class::Class;
pub use ends::{Trim, Worth};
pub use guard::Guard;
pub use lateness::{Begun, IN_TIME, LatenessCost};
pub use returns::{Outcome, Returns, Then};

use serde::{Deserialize, Serialize};

use self::ends::Ends;
use self::fill::Fill;
use crate::ids::WorkerId;
use crate::units::{Millis, Tokens};

/// μ: the weight of prefill that makes no turn late.
pub const MU: f64 = 0.3;
/// Ends sampled per search.
pub const SAMPLE: usize = 64;
/// Turns that a worker should have room for. A larger reserve marks the ends of conversations about to return.
const RESERVE: f64 = 3.0;
const MOST_RESERVE: f64 = 0.125;

/// Returns the room that a worker of this capacity should have for the next turns ([`Tail::next_turns`]).
pub fn reserve(next_turns: Tokens, capacity: Tokens) -> Tokens {
    next_turns.min(Tokens((MOST_RESERVE * capacity.as_f64()) as u64))
}

/// Estimates shared by the fleet, and the silent conversations of each worker. `P` is the caller's handle of a
/// conversation.
#[derive(Clone, Debug)]
pub struct Tail<P> {
    returns: Returns,
    harm: LatenessCost,
    fill: Fill,
    guard: Guard,
    workers: Vec<Slot<P>>,
}

/// Estimates that outlive a process, beside the outcomes of [`Returns`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptTail {
    /// Estimates of lateness.
    pub harm: LatenessCost,
    /// Counts by which hints are paused.
    pub guard: Guard,
}

#[derive(Clone, Debug)]
struct Slot<P> {
    ends: Ends<P>,
    capacity: Tokens,
    /// Smoothed value of the ends given up lately.
    price: f64,
}

impl<P> Default for Tail<P> {
    fn default() -> Self {
        Self {
            returns: Returns::default(),
            harm: LatenessCost::default(),
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

/// A completed turn.
#[derive(Clone, Copy, Debug)]
pub struct Answered<P> {
    /// Time at which the response was complete.
    pub at: Millis,
    /// The worker that served the turn.
    pub worker: WorkerId,
    /// The conversation.
    pub conversation: u64,
    /// The turn's class.
    pub class: Class,
    /// Length of the conversation, response included.
    pub length: Tokens,
    /// The turn's time-to-first-token objective.
    pub objective: Millis,
    /// The caller's handle.
    pub what: P,
}

impl<P: Clone> Tail<P> {
    /// Resets a worker's slot to an empty cache of this capacity.
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

    /// Sets a worker's capacity.
    pub fn set_capacity(&mut self, worker: WorkerId, capacity: Tokens) {
        if let Some(slot) = self.workers.get_mut(worker.index()) {
            slot.capacity = capacity;
            self.fill.room = self.workers.iter().map(|slot| slot.capacity.as_f64()).sum();
        }
    }

    /// Records a turn sent to `worker`. `left` is the worker of the conversation's previous turn, if another one.
    pub fn arrived(&mut self, now: Millis, conversation: u64, worker: WorkerId, left: Option<WorkerId>) {
        self.returns.arrived(now, conversation);
        if let Some(slot) = left.and_then(|left| self.workers.get_mut(left.index())) {
            slot.ends.moved(conversation);
        }
        self.forget(worker, conversation);
    }

    /// Records a turn whose first token has been sent.
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

    /// Records a completed turn, whose conversation is silent from now on.
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

    /// Returns the tokens to give up on a worker with this much room. `None` if it suffices or the guard pauses hints.
    pub fn wanted(&self, worker: WorkerId, room: Tokens) -> Option<Tokens> {
        let slot = self.workers.get(worker.index()).filter(|_| self.guard.allows())?;
        let reserve = reserve(self.next_turns(), slot.capacity);
        (room < reserve).then(|| Tokens(2 * reserve.0 - room.0))
    }

    /// Returns the tokens that the turns within the reserve store, on average.
    #[must_use]
    pub fn next_turns(&self) -> Tokens {
        Tokens((RESERVE * self.fill.mean_stored()) as u64)
    }

    /// Returns the next trim on a worker, of about `need` tokens, or `None` if no end is left.
    pub fn next(&mut self, now: Millis, worker: WorkerId, need: Tokens) -> Option<Trim<P>> {
        let slot = self.workers.get_mut(worker.index())?;
        let trim = slot.ends.next(now, need, &self.returns, self.harm.on(worker))?;
        slot.price += (trim.worth.value - slot.price) / 32.0;
        Some(trim)
    }

    /// Removes a conversation from those whose end the worker may give up.
    pub fn forget(&mut self, worker: WorkerId, conversation: u64) {
        if let Some(slot) = self.workers.get_mut(worker.index()) {
            slot.ends.remove(conversation);
        }
    }

    /// Records `stored` tokens in a full cache that evicts ends by itself; these ends price [`Tail::free_tails`].
    pub fn displaced(&mut self, now: Millis, worker: WorkerId, stored: Tokens) {
        let mut left = stored;
        while left > Tokens::ZERO
            && let Some(trim) = self.next(now, worker, left)
        {
            left = left.saturating_sub(trim.end.saturating_sub(trim.keep));
        }
    }

    /// Returns for each class the tokens at the end of a conversation that, once it is silent, are worth less than the
    /// ends given up lately. Used where a hint can only be sent with the request.
    pub fn free_tails(&self, worker: WorkerId) -> Vec<Tokens> {
        let steps = match self.guard.allows() {
            true => self.harm.on(worker).steps(),
            false => Vec::new(),
        };
        let price = self.workers.get(worker.index()).map_or(0.0, |slot| slot.price);
        let free = |class| {
            let rate = self.returns.rate(class, Millis::ZERO);
            let harm = price / rate.max(f64::MIN_POSITIVE);
            let next = steps.partition_point(|(_, cost)| *cost <= harm);
            let tokens = match steps.get(next) {
                Some((tokens, _)) => *tokens,
                None if steps.is_empty() => 0.0,
                None => f64::INFINITY,
            };
            Tokens(tokens.min(1e9) as u64)
        };
        Class::all().map(free).collect()
    }

    /// Adds the outcomes learned by another process.
    pub fn restore(&mut self, now: Millis, outcomes: &[Outcome]) {
        self.returns.restore(now, outcomes);
    }

    /// Returns the estimates that another process can restore.
    #[must_use]
    pub fn kept(&self) -> KeptTail {
        KeptTail {
            harm: self.harm.clone(),
            guard: self.guard.clone(),
        }
    }

    /// Restores the estimates of another process unless more turns were observed here. Returns whether they are in force.
    pub fn restore_kept(&mut self, kept: &KeptTail) -> bool {
        let restored = kept.guard.is_sound() && self.harm.restore(&kept.harm);
        if restored {
            self.guard = kept.guard.clone();
        }
        restored
    }

    /// Returns the estimate of returns.
    pub fn returns(&self) -> &Returns {
        &self.returns
    }

    /// Returns the estimate of lateness.
    pub fn harm(&self) -> &LatenessCost {
        &self.harm
    }

    /// Returns the guard, which may pause hints.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns the number of silent conversations on a worker.
    pub fn silent_on(&self, worker: WorkerId) -> usize {
        self.workers.get(worker.index()).map_or(0, |slot| slot.ends.len())
    }
}
