//! The router's part: snapshots from its estimators, its choice, and its hints to caches.

use rustc_hash::FxHashMap;

use super::cache_rule::CacheRule;
use super::foreign::Foreign;
use super::ordered::OrderedWork;
use super::server::Server;
use super::view::Beliefs;
use super::workload::Item;
use super::{FleetConfig, Order, WorkerSpec};
use policy::estimate::{ConversationCounts, LastTurn, LearnedCost, PendingWork, Ticket, Utilisation};
use policy::ids::{ConversationId, WorkerId};
use policy::index::Reach;
use policy::residency::Reservation;
use policy::route::{self, Decision, Snapshot, WorkerView};
use policy::slo;
use policy::tail::{Answered, Begun, Class, Tail};
use policy::units::{Millis, Tokens};

#[derive(Debug)]
pub(super) struct Load {
    pub(super) pending: PendingWork,
    ordered: OrderedWork,
    utilisation: Utilisation,
    pub(super) in_flight: u32,
    pub(super) ready: bool,
    learned: LearnedCost,
    /// Time of the worker's last first token: the earliest start of the next prefill.
    last_first_token: Millis,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) turn: u32,
    pub(super) at: Millis,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) worker: usize,
    turn: u32,
    ticket: Option<Ticket>,
    hold: Option<Reservation>,
    pub(super) evict_first: Tokens,
    sent_at: Millis,
    pub(super) prefill: Millis,
    pub(super) predicted_ttft: Millis,
    pub(super) key: f64,
}

#[derive(Debug)]
pub(super) struct Brain<'a> {
    pub(super) config: &'a FleetConfig,
    pub(super) loads: Vec<Load>,
    pub(super) beliefs: Beliefs,
    pub(super) foreign: FxHashMap<u32, Foreign>,
    last_turn: FxHashMap<ConversationId, LastTurn>,
    homes: ConversationCounts,
    /// Under [`CacheRule::Tail`]: silent conversations, by their last turn.
    tail: Option<Tail<u32>>,
    pub(super) sequence: u64,
    reach: Reach,
    pub(super) resident: Vec<Tokens>,
    indexed: Vec<Tokens>,
    pub(super) views: Vec<WorkerView>,
}

fn tail_of(capacities: &[Tokens]) -> Tail<u32> {
    let mut tail = Tail::default();
    for (worker, capacity) in (0..).zip(capacities) {
        tail.admit(WorkerId(worker), *capacity);
    }
    tail
}

impl Load {
    pub(super) fn sent(&mut self, now: Millis, turn: u32, prefill: Millis, key: f64) -> Ticket {
        self.in_flight += 1;
        self.utilisation.add(now, prefill);
        self.ordered.sent(now, turn, key, prefill);
        self.pending.sent(now, prefill)
    }

    pub(super) fn first_token(&mut self, now: Millis, turn: u32, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.pending.first_token(now, ticket);
            self.ordered.done(now, turn);
        }
        self.last_first_token = now;
    }

    /// Records the end of a turn. A turn that never began stops counting as pending.
    pub(super) fn ended(&mut self, now: Millis, turn: u32, ticket: Option<Ticket>) {
        self.in_flight -= 1;
        if let Some(ticket) = ticket {
            self.pending.gone(now, ticket);
            self.ordered.done(now, turn);
        }
    }
}

impl<'a> Brain<'a> {
    pub(super) fn new(config: &'a FleetConfig, block_tokens: u32, seed: u64) -> Self {
        let capacities: Vec<Tokens> = config.workers.iter().map(|worker| worker.capacity).collect();
        let load = |worker: &WorkerSpec| Load {
            pending: PendingWork::new(),
            ordered: OrderedWork::default(),
            utilisation: Utilisation::new(config.utilisation_window),
            in_flight: 0,
            ready: true,
            learned: LearnedCost::new(worker.cost),
            last_first_token: Millis::ZERO,
        };
        Self {
            loads: config.workers.iter().map(load).collect(),
            beliefs: Beliefs::new(config.view, &capacities, block_tokens, seed),
            foreign: FxHashMap::default(),
            last_turn: FxHashMap::default(),
            homes: ConversationCounts::new(config.utilisation_window),
            tail: (config.cache == CacheRule::Tail).then(|| tail_of(&capacities)),
            sequence: 0,
            reach: Reach::new(),
            resident: Vec::new(),
            indexed: Vec::new(),
            views: Vec::new(),
            config,
        }
    }

    /// Chooses a worker and counts the turn as sent; `None` if no worker is ready.
    pub(super) fn send(
        &mut self,
        now: Millis,
        servers: &[Server],
        arrival: Arrival,
        item: &Item,
    ) -> Option<(Sent, Decision)> {
        self.look_at(now, servers, arrival.at, item);
        let sequence = self.sequence;
        self.sequence += 1;
        let snapshot = Snapshot {
            workers: &self.views,
            settings: &self.config.settings,
            sequence,
        };
        let turn = self.turn(item);
        let decision = route::decide(&snapshot, &turn)?;
        Some((self.sent(now, &decision, arrival, item), decision))
    }

    pub(super) fn look_at(&mut self, now: Millis, servers: &[Server], arrived: Millis, item: &Item) {
        self.beliefs.look_up(
            servers,
            &item.chain,
            &mut self.reach,
            &mut self.resident,
            &mut self.indexed,
        );
        self.look_at_workers(now, arrived, item);
    }

    pub(super) fn objective(&self, item: &Item) -> Millis {
        item.objective.unwrap_or(self.config.target.ttft)
    }

    pub(super) fn turn<'b>(&'b self, item: &'b Item) -> route::Turn<'b> {
        route::Turn {
            prompt: item.prompt,
            resident: &self.resident,
            objective: self.objective(item),
            last_worker: self.last_turn.get(&item.conversation).map(|home| home.worker),
            conversation: Some(item.conversation),
            // The first block of some traces is a system prompt shared by all; the second tells users apart.
            head: item
                .chain
                .hashes()
                .get(1)
                .or(item.chain.hashes().first())
                .copied(),
            class: &item.class,
            ask: None,
        }
    }

    fn look_at_workers(&mut self, now: Millis, arrived: Millis, item: &Item) {
        self.views.clear();
        let objective = self.objective(item);
        for (at, (load, spec)) in self.loads.iter().zip(&self.config.workers).enumerate() {
            let cost = if self.config.learn_costs {
                load.learned.cost()
            } else {
                spec.cost
            };
            let wait = match self.config.order {
                Order::Fifo => load.pending.wait(now),
                order => {
                    let cached = self.resident[at].min(item.prompt);
                    let prefill = cost.prefill(item.prompt.saturating_sub(cached), cached);
                    let key = order.key(arrived, prefill, objective);
                    load.ordered.wait(now, key)
                }
            };
            self.views.push(WorkerView {
                id: WorkerId(at as u32),
                ready: load.ready,
                cost,
                overhead: Millis::ZERO,
                wait,
                utilisation: load.utilisation.at(now),
                mean_work: load.utilisation.mean_work(),
                in_flight: load.in_flight,
                indexed: self.indexed[at],
                conversations: self.homes.of(WorkerId(at as u32)),
            });
        }
    }

    pub(super) fn sent(&mut self, now: Millis, decision: &Decision, arrival: Arrival, item: &Item) -> Sent {
        let evict_first = self.evict_first(decision.chosen, item);
        let (worker, terms) = (decision.chosen, decision.chosen());
        let cost = self.views[worker].cost;
        let objective = self.objective(item);
        let prefill = cost.prefill(terms.uncached, terms.cached);
        let key = self.config.order.key(arrival.at, prefill, objective);
        let ticket = self.loads[worker].sent(now, arrival.turn, prefill, key);
        let last = self.placed(now, item.conversation, worker);
        if let Some(tail) = &mut self.tail {
            let left = last.filter(|last| last.index() != worker);
            tail.arrived(now, item.conversation.0, WorkerId(worker as u32), left);
        }
        Sent {
            worker,
            turn: arrival.turn,
            ticket: Some(ticket),
            hold: self.beliefs.sent(worker, &item.chain),
            evict_first,
            sent_at: now,
            prefill,
            predicted_ttft: now.saturating_sub(arrival.at) + terms.predicted_ttft(),
            key,
        }
    }

    pub(super) fn placed(
        &mut self,
        now: Millis,
        conversation: ConversationId,
        worker: usize,
    ) -> Option<WorkerId> {
        let home = LastTurn {
            worker: WorkerId(worker as u32),
            at: now,
        };
        let last = self.last_turn.insert(conversation, home);
        self.homes.placed(now, home.worker, last);
        last.map(|last| last.worker)
    }

    fn evict_first(&self, worker: usize, item: &Item) -> Tokens {
        let view = &self.views[worker];
        let (target, objective) = (&self.config.target, self.objective(item));
        match self.config.cache {
            CacheRule::TLru => {
                let xi = slo::xi_tokens(&view.cost, objective, Millis::ZERO, item.prompt);
                slo::evict_first_tail(xi, target.next_prompt)
            }
            CacheRule::TLruAt(xi) => slo::evict_first_tail(xi.as_f64(), target.next_prompt),
            CacheRule::LengthAware => {
                let xi = slo::xi_tokens(&view.cost, objective, Millis::ZERO, item.prompt);
                Tokens(xi.min(1e9) as u64)
            }
            CacheRule::Lru
            | CacheRule::Tail
            | CacheRule::Threshold(_)
            | CacheRule::EndLru
            | CacheRule::Ranked(_) => Tokens::ZERO,
        }
    }

    /// Records a turn's first token. The engine reports the cached tokens, so the prefill time is known too: a worker
    /// computes one prompt at a time, from its arrival or from the end of the previous one.
    pub(super) fn first_token(
        &mut self,
        now: Millis,
        sent: &mut Sent,
        item: &Item,
        uncached: Tokens,
        cached: Tokens,
        arrived: Millis,
    ) {
        let load = &mut self.loads[sent.worker];
        let began = load.last_first_token.max(sent.sent_at);
        load.first_token(now, sent.turn, sent.ticket.take());
        let ttft = now.saturating_sub(arrived);
        let prefill = load.learned.cost().prefill(uncached, cached);
        if let Some(tail) = &mut self.tail {
            let begun = Begun {
                compared: sent.hold.as_ref().and_then(Reservation::compared),
                wait: ttft.saturating_sub(prefill),
                ttft,
                objective: item.objective.unwrap_or(self.config.target.ttft),
                prompt: item.prompt,
                cached,
                history: item.prompt.saturating_sub(item.new_tokens),
                cost: load.learned.cost(),
            };
            tail.begun(now, WorkerId(sent.worker as u32), &begun);
        }
        let before = load.learned.cost();
        load.learned.observe(uncached, cached, now.saturating_sub(began));
        if self.config.learn_costs {
            let typical = load.utilisation.mean_work();
            let factor = load.learned.cost().times_as_long_as(&before, typical);
            load.pending.repriced(factor);
        }
    }

    /// Records a complete response. Returns how many of the conversation's last tokens the worker may evict first.
    pub(super) fn answered(
        &mut self,
        now: Millis,
        sent: Sent,
        item: &Item,
        next_prompt: Option<Tokens>,
    ) -> Tokens {
        let total = item.prompt + item.response;
        let evict_first = match (self.config.cache, next_prompt) {
            (CacheRule::Threshold(least), _) if total < least => total,
            (CacheRule::EndLru | CacheRule::LengthAware, None) => total,
            (CacheRule::LengthAware, Some(next)) => sent.evict_first.saturating_sub(next),
            _ => sent.evict_first,
        };
        self.loads[sent.worker].ended(now, sent.turn, sent.ticket);
        if let Some(tail) = &mut self.tail {
            let turn = Answered {
                at: now,
                worker: WorkerId(sent.worker as u32),
                conversation: item.conversation.0,
                class: Class::of(item.number, item.new_tokens, false),
                length: total,
                objective: item.objective.unwrap_or(self.config.target.ttft),
                what: sent.turn,
            };
            tail.answered(turn, item.response);
        }
        self.beliefs.settled(
            sent.worker,
            &item.chain,
            &item.reply,
            sent.hold,
            evict_first,
            total,
        );
        evict_first
    }

    pub(super) fn make_room(&mut self, now: Millis, at: usize, server: &mut Server, items: &[Item]) {
        let worker = WorkerId(at as u32);
        let Some(tail) = &mut self.tail else { return };
        let Some(wanted) = tail.wanted(worker, self.beliefs.room_on(at, server)) else {
            return;
        };
        let enough = self.beliefs.room_on(at, server) + wanted;
        loop {
            let need = enough.saturating_sub(self.beliefs.room_on(at, server));
            if need == Tokens::ZERO {
                return;
            }
            let Some(trim) = tail.next(now, worker, need) else {
                return;
            };
            let item = &items[trim.what as usize];
            let keys = || {
                item.reply
                    .hashes()
                    .iter()
                    .rev()
                    .chain(item.chain.hashes().iter().rev())
            };
            let held = keys().find(|key| server.cache.contains(**key)).copied();
            self.beliefs.trimmed(at, keys().copied(), trim.keep);
            match held {
                Some(key) => server.cache.trim(key, trim.keep),
                None => tail.forget(worker, trim.conversation),
            }
        }
    }

    pub(super) fn failed(&mut self, now: Millis, sent: Sent, item: &Item) {
        self.loads[sent.worker].ended(now, sent.turn, sent.ticket);
        self.beliefs.retracted(sent.worker, &item.chain, sent.hold);
    }

    pub(super) fn set_ready(&mut self, worker: usize, ready: bool) {
        self.loads[worker].ready = ready;
        if !ready {
            self.beliefs.forget(worker);
        }
    }
}
