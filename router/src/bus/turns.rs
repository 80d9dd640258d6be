//! What a request says of itself, from its own thread: one push into a bounded queue, which never waits.
//!
//! What does not fit is lost and counted: the next roll call says what is under way all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::residency::Reply;
use policy::units::{Millis, Tokens};

use super::wire::{self, Keys, Left, LeftBytes};
use super::{Bus, worker_key};
use fleet::Worker;
use fleet::clock::Clock;

/// A turn of this replica's that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) worker: u64,
    pub(super) sent: Millis,
    pub(super) prefill: Millis,
    pub(super) session: Option<u64>,
    pub(super) begun: AtomicBool,
}

/// What happened.
#[derive(Debug)]
pub(super) enum Said {
    Sent(Arc<Turn>, Keys),
    Begun(u64, Millis),
    Answered(u64, Millis, LeftBytes),
    Gone(u64, Millis),
    Hinted(u64, u64),
    Trimmed(wire::Trimmed),
}

/// A turn that the others were told of; dropped, they are told that it is gone, unless it was answered.
#[derive(Debug)]
pub struct Told {
    bus: Arc<Bus>,
    clock: Clock,
    turn: Arc<Turn>,
    is_over: bool,
}

impl Bus {
    /// A turn goes to a worker. `tokens` tells where in tokens an end of its keys is.
    #[must_use]
    pub fn sent(
        self: &Arc<Self>,
        clock: Clock,
        (worker, prefill): (&Worker, Millis),
        session: Option<u64>,
        keys: &Chain,
        tokens: impl Fn(u64) -> u64,
    ) -> Told {
        let turn = Arc::new(Turn {
            number: self.next_turn.fetch_add(1, Ordering::Relaxed),
            worker: worker_key(worker.name()),
            sent: clock.now(),
            prefill,
            session,
            begun: AtomicBool::new(false),
        });
        // Nobody would hear them; that it is under way is said when NATS is back.
        let keys = if self.is_up() {
            Keys::of(keys, 0, tokens)
        } else {
            Keys::none()
        };
        self.say(Said::Sent(Arc::clone(&turn), keys));
        Told {
            bus: Arc::clone(self),
            clock,
            turn,
            is_over: false,
        }
    }

    /// A worker was told something under this number.
    pub fn hinted(&self, worker: &Worker, epoch: u64) {
        self.say(Said::Hinted(worker_key(worker.name()), epoch));
    }

    /// A worker was told to drop the end of a conversation first, past its first `keep` tokens. `keys` are some of its
    /// keys, the last one first.
    pub fn trimmed(&self, worker: &Worker, keep: Tokens, keys: &[PrefixHash]) {
        self.say(Said::Trimmed(wire::Trimmed {
            worker: worker_key(worker.name()),
            keep: keep.0,
            keys: keys.to_vec(),
        }));
    }

    fn say(&self, said: Said) {
        if self.queue.try_send(said).is_err() {
            self.counters.lost("queue", 1);
        }
    }
}

impl Told {
    /// Its first token passed.
    pub fn begun(&self) {
        if !self.turn.begun.swap(true, Ordering::Relaxed) {
            self.bus.say(Said::Begun(self.turn.number, self.clock.now()));
        }
    }

    /// The worker computed it, and holds its prompt and its reply; `tokens` tells where in tokens an end of the reply is.
    pub fn answered(
        mut self,
        reply: Option<&Reply<'_>>,
        (evict_first, total): (Tokens, Tokens),
        tokens: impl Fn(u64) -> u64,
    ) {
        self.is_over = true;
        let mut left = Left {
            total: total.0,
            evict_first: evict_first.0.min(total.0),
            ..Left::default()
        };
        let mut keys = Keys::none();
        if let Some(reply) = reply.filter(|_| self.bus.is_up()) {
            left.parent = reply.parent;
            left.open = reply.open;
            left.before = tokens(reply.before);
            keys = Keys::of(reply.chain, left.before, tokens);
        }
        let left = LeftBytes::of(&left, &keys);
        self.bus
            .say(Said::Answered(self.turn.number, self.clock.now(), left));
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.is_over {
            self.bus.say(Said::Gone(self.turn.number, self.clock.now()));
        }
    }
}
