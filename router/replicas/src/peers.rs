//! The other replicas' turns, accounted for like this replica's own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use policy::estimate::Ticket;
use policy::fingerprint::Chain;
use policy::residency::{Reply, Reservation};
use policy::units::{Millis, Tokens};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::{info, warn};

use super::Bus;
use super::wire::{self, CachedTurn, MessageBody, News, Roll, Sent, TrimNotice, UnderWay, WireError};
use super::worker_key;
use fleet::{Worker, overrides};
use metrics::BusCounters;
use state::State;
use tailroute_http::byte_reservation::ByteReservation;

/// Largest number of replicas tracked at the same time. Others are ignored.
const MOST_PEERS: usize = 64;
const MOST_TURNS: usize = 65_536;
pub(super) const MOST_BYTES: usize = 64 << 20;
/// Number of bytes counted for a turn, including its entries in maps and queues.
pub(super) const TURN_BYTES: usize = 256;
/// Number of bytes counted for a key of a turn's prompt.
const KEY_BYTES: usize = size_of::<u32>();
/// Longest prefill accepted for one turn. A longer one would make no difference: nothing is queued behind it anyway.
const MOST_PREFILL: Millis = Millis(600_000.0);
/// Largest number of missing messages counted at once: more are not sent within [`SILENT`].
const MOST_MISSING: u64 = 100_000;
/// Time without messages after which a replica is removed.
pub const SILENT: Millis = Millis(3_000.0);

/// The other replicas, and their turns in progress.
#[derive(Debug, Default)]
pub struct Peers(Mutex<PeerTable>);

#[derive(Debug, Default)]
struct PeerTable {
    peers: BTreeMap<u64, PeerRecord>,
    workers: WorkersByKey,
    /// Number of bytes of all tracked turns.
    held: Arc<AtomicUsize>,
    is_foreign_known: bool,
}

#[derive(Debug)]
struct PeerRecord {
    name: String,
    heard: Millis,
    draining: bool,
    /// Expected number of the replica's next message.
    next: u64,
    lost: u64,
    turns: BTreeMap<u64, PeerTurn>,
}

#[derive(Debug)]
struct PeerTurn {
    worker: Arc<Worker>,
    ticket: Option<Ticket>,
    hold: Option<Reservation>,
    session: Option<u64>,
    _room: ByteReservation,
}

/// The state of another replica.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PeerState {
    /// Name of the replica.
    pub replica: String,
    /// Seconds since the replica's last message.
    pub heard_s: f64,
    /// Whether the replica is draining.
    pub draining: bool,
    /// Number of the replica's turns in progress.
    pub in_flight: usize,
    /// Number of the replica's messages that were lost.
    pub lost_messages: u64,
}

/// Workers by their keys on the bus.
#[derive(Debug, Default)]
struct WorkersByKey {
    of: Option<Arc<Vec<Arc<Worker>>>>,
    by_key: HashMap<u64, Arc<Worker>>,
}

impl WorkersByKey {
    fn refresh(&mut self, state: &State) {
        let now = state.routing.fleet.workers();
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &now)) {
            self.by_key = now
                .iter()
                .map(|worker| (worker_key(worker.name()), Arc::clone(worker)))
                .collect();
            self.of = Some(Arc::clone(&now));
        }
    }

    fn find(&self, key: u64) -> Option<&Arc<Worker>> {
        let gone = |worker: &&Arc<Worker>| worker.admin_state() == overrides::AdminState::Gone;
        self.by_key.get(&key).filter(|worker| !gone(worker))
    }
}

impl Peers {
    /// Processes a message of another replica.
    pub fn hear(&self, state: &State, bus: &Bus, message: &[u8]) {
        let counters = &bus.counters;
        counters.message("received", message.len());
        let all = &mut *self.0.lock();
        let read = match message.len() {
            long if long > wire::LONGEST_BYTES => Err(WireError::Malformed),
            _ => wire::read(message),
        };
        let (head, body) = match read {
            Ok(read) => read,
            Err(error) => {
                counters.lost_messages("malformed", 1);
                if !std::mem::replace(&mut all.is_foreign_known, true) {
                    warn!(%error, "a message of another replica is invalid; do all replicas have the same version?");
                }
                return;
            }
        };
        if head.sender == bus.id {
            return;
        }
        let now = state.routing.clock.now();
        if !all.peers.contains_key(&head.sender) && all.peers.len() == MOST_PEERS {
            counters.lost_messages("peers", 1);
            return;
        }
        all.workers.refresh(state);
        let workers = &all.workers;
        let peer = all.peers.entry(head.sender).or_insert_with(|| {
            // The new replica needs this one's turns in progress.
            bus.roll_wanted.notify_one();
            PeerRecord::new(head.number)
        });
        let missing = head.number.saturating_sub(peer.next).min(MOST_MISSING);
        peer.lost = peer.lost.saturating_add(missing);
        counters.lost_messages("missing", missing);
        peer.next = head.number.saturating_add(1);
        peer.heard = now;
        let held = &all.held;
        let mut books = Books {
            state,
            counters,
            workers,
            held,
            now,
        };
        match body {
            MessageBody::Turns(news) => {
                counters.events("received", news.len() as u64);
                for news in news {
                    books.take_in(peer, news);
                }
            }
            MessageBody::Roll(roll) => books.roll(peer, roll),
        }
    }

    /// Removes silent replicas, and turns on removed workers.
    pub fn tidy(&self, state: &State, bus: &Bus) {
        let all = &mut *self.0.lock();
        all.workers.refresh(state);
        let now = state.routing.clock.now();
        let mut books = Books {
            state,
            counters: &bus.counters,
            workers: &all.workers,
            held: &all.held,
            now,
        };
        all.peers.retain(|_, peer| {
            let is_gone = now >= peer.heard + SILENT;
            if is_gone {
                books.forget(peer);
            } else {
                books.leave_workers(peer);
            }
            !is_gone
        });
    }

    /// Returns the number of replicas, and that of their turns.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let all = self.0.lock();
        (
            all.peers.len(),
            all.peers.values().map(|peer| peer.turns.len()).sum(),
        )
    }

    #[must_use]
    pub fn state(&self, now: Millis) -> Vec<PeerState> {
        let all = self.0.lock();
        let state = |peer: &PeerRecord| PeerState {
            replica: peer.name.clone(),
            heard_s: (now - peer.heard).0.max(0.0) / 1e3,
            draining: peer.draining,
            in_flight: peer.turns.len(),
            lost_messages: peer.lost,
        };
        all.peers.values().map(state).collect()
    }
}

impl PeerRecord {
    fn new(number: u64) -> Self {
        Self {
            name: String::new(),
            heard: Millis::ZERO,
            draining: false,
            next: number,
            lost: 0,
            turns: BTreeMap::new(),
        }
    }
}

/// The state that turns of other replicas are applied to.
struct Books<'a> {
    state: &'a State,
    counters: &'a BusCounters,
    workers: &'a WorkersByKey,
    held: &'a Arc<AtomicUsize>,
    now: Millis,
}

impl Books<'_> {
    fn take_in(&mut self, peer: &mut PeerRecord, news: News) {
        match news {
            News::Sent(sent) => self.sent(peer, &sent),
            News::Begun { turn, age } => {
                if let Some(turn) = peer.turns.get_mut(&turn) {
                    self.begun(turn, self.now.saturating_sub(age));
                }
            }
            News::Answered { turn, age, left } => {
                if let Some(mut turn) = peer.turns.remove(&turn) {
                    let at = self.now.saturating_sub(age);
                    self.begun(&mut turn, at);
                    turn.worker.others_ended(at, None);
                    self.settle(turn, Some(&left));
                }
            }
            News::Gone { turn, age } => {
                if let Some(turn) = peer.turns.remove(&turn) {
                    self.gone(turn, self.now.saturating_sub(age));
                }
            }
            News::Hinted { worker, epoch } => {
                if let Some(worker) = self.worker(worker) {
                    worker.hints.observe_epoch(epoch);
                }
            }
            News::Trimmed(TrimNotice { worker, keep, keys }) => {
                if let Some(worker) = self.worker(worker) {
                    self.state.routing.knowledge.update(worker.id, |residency| {
                        let _ = residency.trimmed(worker.id, keys, Tokens(keep));
                    });
                }
            }
        }
    }

    fn worker(&self, key: u64) -> Option<Arc<Worker>> {
        let found = self.workers.find(key).cloned();
        if found.is_none() {
            self.counters.lost_event("worker");
        }
        found
    }

    /// Reserves room for a turn with this number of keys.
    fn room(&self, peer: &PeerRecord, keys: usize) -> Option<ByteReservation> {
        let mut room = ByteReservation::new(Arc::clone(self.held), MOST_BYTES);
        let has_room = peer.turns.len() < MOST_TURNS && room.grow(TURN_BYTES + keys * KEY_BYTES);
        if !has_room {
            self.counters.lost_event("turns");
        }
        has_room.then_some(room)
    }

    fn sent(&mut self, peer: &mut PeerRecord, sent: &Sent) {
        let at = self.now.saturating_sub(sent.age);
        // A roll call may have reported it earlier.
        if let Some(known) = peer.turns.remove(&sent.turn) {
            self.gone(known, at);
        }
        let Some(worker) = self.worker(sent.worker) else {
            return;
        };
        let Some(room) = self.room(peer, sent.keys.len()) else {
            return;
        };
        let ticket = worker.others_sent(at, Some(sent.prefill.min(MOST_PREFILL)));
        let hold = self.hold(&worker, &sent.keys);
        let turn = PeerTurn {
            worker,
            ticket,
            hold,
            session: sent.session,
            _room: room,
        };
        peer.turns.insert(sent.turn, turn);
    }

    fn hold(&self, worker: &Worker, keys: &Chain) -> Option<Reservation> {
        if keys.is_empty() {
            return None;
        }
        let sent = |residency: &mut policy::residency::Residency| residency.sent(worker.id, keys, |end| end);
        self.state.routing.knowledge.update(worker.id, sent)
    }

    fn begun(&self, turn: &mut PeerTurn, at: Millis) {
        if let Some(ticket) = turn.ticket.take() {
            turn.worker.prefilled(at, ticket);
            if let Some(session) = turn.session {
                let left = self.state.routing.knowledge.moved(at, session, turn.worker.id);
                let mut tail = self.state.routing.feedback.tail.lock();
                tail.arrived(at, session, turn.worker.id, left);
            }
        }
    }

    /// Records that the worker computed the turn's prompt, and what is known of its reply.
    fn settle(&self, turn: PeerTurn, left: Option<&CachedTurn>) {
        let Some(hold) = turn.hold else { return };
        let reply = left.filter(|left| !left.reply.is_empty()).map(|left| Reply {
            parent: left.parent,
            chain: &left.reply,
            before: left.before,
            open: left.open,
        });
        let (evict_first, total) = left.map_or((0, 0), |left| (left.evict_first, left.total));
        self.state.routing.knowledge.update(turn.worker.id, |residency| {
            residency.settle(hold, reply, |end| end, Tokens(evict_first), Tokens(total));
        });
    }

    /// Removes a turn from its worker. A turn that had begun was computed.
    fn gone(&self, mut turn: PeerTurn, at: Millis) {
        let has_begun = turn.ticket.is_none();
        turn.worker.others_ended(at, turn.ticket.take());
        if has_begun {
            self.settle(turn, None);
        } else if let Some(hold) = turn.hold {
            self.state
                .routing
                .knowledge
                .update(turn.worker.id, |residency| residency.retract(hold));
        }
    }

    fn roll(&mut self, peer: &mut PeerRecord, roll: Roll) {
        // A process keeps its name; logging only the first prevents log spam by a faulty peer.
        if peer.name.is_empty() && !roll.name.is_empty() {
            info!(replica = roll.name, "discovered another replica");
            peer.name = roll.name;
        }
        peer.draining = roll.draining;
        let said: HashMap<u64, &UnderWay> = roll.turns.iter().map(|turn| (turn.turn, turn)).collect();
        let over: Vec<u64> = (peer.turns.range(roll.from..))
            .take_while(|(number, _)| **number < roll.to)
            .filter(|(number, _)| !said.contains_key(number))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            if let Some(turn) = peer.turns.remove(&number) {
                self.gone(turn, self.now);
            }
        }
        for under_way in &roll.turns {
            self.under_way(peer, under_way);
        }
    }

    /// Records a turn in progress from a roll call, which does not repeat prompts.
    fn under_way(&mut self, peer: &mut PeerRecord, turn: &UnderWay) {
        if let Some(known) = peer.turns.get_mut(&turn.turn) {
            if turn.begun {
                self.begun(known, self.now);
            }
            return;
        }
        let Some(worker) = self.worker(turn.worker) else {
            return;
        };
        let Some(room) = self.room(peer, 0) else {
            return;
        };
        let prefill = (!turn.begun).then_some(turn.prefill.min(MOST_PREFILL));
        let ticket = worker.others_sent(self.now.saturating_sub(turn.age), prefill);
        let known = PeerTurn {
            worker,
            ticket,
            hold: None,
            session: None,
            _room: room,
        };
        peer.turns.insert(turn.turn, known);
    }

    fn forget(&mut self, peer: &mut PeerRecord) {
        if peer.draining && peer.turns.is_empty() {
            info!(replica = peer.name, "another replica has left");
        } else {
            warn!(
                replica = peer.name,
                in_flight = peer.turns.len(),
                "another replica timed out; its turns are removed"
            );
        }
        for (_, turn) in std::mem::take(&mut peer.turns) {
            self.gone(turn, self.now);
        }
    }

    /// Removes turns on removed workers, whose slots may be reused.
    fn leave_workers(&mut self, peer: &mut PeerRecord) {
        let left: Vec<u64> = (peer.turns.iter())
            .filter(|(_, turn)| turn.worker.admin_state() == overrides::AdminState::Gone)
            .map(|(number, _)| *number)
            .collect();
        for number in left {
            if let Some(turn) = peer.turns.remove(&number) {
                self.gone(turn, self.now);
            }
        }
    }
}
