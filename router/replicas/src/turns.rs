//! Reports from a request's own thread: one push into a bounded queue, which never waits.
//!
//! Reports that do not fit are dropped and counted; the next roll call corrects the state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use policy::ids::PrefixHash;
use policy::residency::Reply;
use policy::units::{Millis, Tokens};

use super::wire::{self, CachedTurn, CachedTurnBytes, EncodedKeys};
use super::{Bus, worker_key};
use fleet::Worker;
use fleet::clock::Clock;
use state::turn_reports::{ReportedTurn, SentTurn, TokensAt, TurnReports};

#[derive(Debug)]
pub(super) struct TrackedTurn {
    pub(super) number: u64,
    pub(super) worker: u64,
    pub(super) sent: Millis,
    pub(super) prefill: Millis,
    pub(super) session: Option<u64>,
    pub(super) begun: AtomicBool,
}

#[derive(Debug)]
pub(super) enum TurnReport {
    Sent(Arc<TrackedTurn>, EncodedKeys),
    Begun(u64, Millis),
    Answered(u64, Millis, CachedTurnBytes),
    Gone(u64, Millis),
    Hinted(u64, u64),
    Trimmed(wire::TrimNotice),
}

#[derive(Debug)]
struct BusReportedTurn {
    bus: Arc<Bus>,
    clock: Clock,
    turn: Arc<TrackedTurn>,
    is_over: bool,
}

impl TurnReports for Bus {
    fn sent(
        self: Arc<Self>,
        clock: Clock,
        sent: &SentTurn<'_>,
        tokens: TokensAt<'_>,
    ) -> Box<dyn ReportedTurn> {
        let turn = Arc::new(TrackedTurn {
            number: self.next_turn.fetch_add(1, Ordering::Relaxed),
            worker: worker_key(sent.worker.name()),
            sent: clock.now(),
            prefill: sent.prefill,
            session: sent.session,
            begun: AtomicBool::new(false),
        });
        // Without NATS the keys would be lost; the roll call after reconnection reports the turn.
        let keys = if self.is_up() {
            EncodedKeys::of(sent.keys, 0, tokens)
        } else {
            EncodedKeys::none()
        };
        self.say(TurnReport::Sent(Arc::clone(&turn), keys));
        Box::new(BusReportedTurn {
            bus: self,
            clock,
            turn,
            is_over: false,
        })
    }

    fn hinted(&self, worker: &Worker, epoch: u64) {
        self.say(TurnReport::Hinted(worker_key(worker.name()), epoch));
    }

    fn trimmed(&self, worker: &Worker, keep: Tokens, keys: &[PrefixHash]) {
        self.say(TurnReport::Trimmed(wire::TrimNotice {
            worker: worker_key(worker.name()),
            keep: keep.0,
            keys: keys.to_vec(),
        }));
    }
}

impl Bus {
    fn say(&self, said: TurnReport) {
        if self.queue.try_send(said).is_err() {
            self.counters.lost_event("queue");
        }
    }
}

impl ReportedTurn for BusReportedTurn {
    fn begun(&self) {
        if !self.turn.begun.swap(true, Ordering::Relaxed) {
            self.bus
                .say(TurnReport::Begun(self.turn.number, self.clock.now()));
        }
    }

    fn answered(
        mut self: Box<Self>,
        reply: Option<&Reply<'_>>,
        evict_first: Tokens,
        total: Tokens,
        tokens: TokensAt<'_>,
    ) {
        self.is_over = true;
        let mut left = CachedTurn {
            total: total.0,
            evict_first: evict_first.0.min(total.0),
            ..CachedTurn::default()
        };
        let mut keys = EncodedKeys::none();
        if let Some(reply) = reply.filter(|_| self.bus.is_up()) {
            left.parent = reply.parent;
            left.open = reply.open;
            left.before = tokens(reply.before);
            keys = EncodedKeys::of(reply.chain, left.before, tokens);
        }
        let left = CachedTurnBytes::of(&left, &keys);
        self.bus
            .say(TurnReport::Answered(self.turn.number, self.clock.now(), left));
    }
}

impl Drop for BusReportedTurn {
    fn drop(&mut self) {
        if !self.is_over {
            self.bus.say(TurnReport::Gone(self.turn.number, self.clock.now()));
        }
    }
}
