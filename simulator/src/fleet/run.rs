//! The event loop: processes events in order until none are left.

use std::cell::Cell;
use std::ops::ControlFlow;

use rand::SeedableRng;
use rand_distr::{Distribution, Uniform};
use rand_pcg::Pcg64;

use super::brain::{Arrival, Sent};
use super::events::{Agenda, Event};
use super::foreign::Word;
use super::holding::Held;
use super::report::{FleetReport, Tally, TurnRecord};
use super::routers::{Brains, ROLL_CALL};
use super::server::Server;
use super::view::View;
use super::worker_cache::{self, WorkerLease};
use super::workload::Workload;
use super::{FaultKind, FleetConfig, Pace};
use policy::cache::Keep;
use policy::route::Decision;
use policy::units::{Millis, Tokens};

/// A choice of a worker when it is made, with every worker's terms.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Position of the turn in the trace. A turn whose worker dies is chosen for again.
    pub turn: u32,
    /// Time of sending.
    pub at: Millis,
    pub decision: &'a Decision,
}

/// Plays the workload through the fleet.
pub fn run(workload: &Workload, config: &FleetConfig) -> FleetReport {
    run_observed(workload, config, &mut |_| {})
}

/// Plays the workload through the fleet, and passes every choice to `observe` as it is made.
pub fn run_observed(
    workload: &Workload,
    config: &FleetConfig,
    observe: &mut dyn FnMut(Choice<'_>),
) -> FleetReport {
    let mut run = Run::new(workload, config, observe);
    while run.step() {}
    run.report()
}

/// Plays the workload as [`run_observed`] does while `observe` returns [`ControlFlow::Continue`]. `None` if it stopped
/// early.
pub fn run_while(
    workload: &Workload,
    config: &FleetConfig,
    observe: &mut dyn FnMut(Choice<'_>) -> ControlFlow<()>,
) -> Option<FleetReport> {
    let goes_on = Cell::new(true);
    let mut watched = |choice: Choice<'_>| goes_on.set(goes_on.get() && observe(choice).is_continue());
    let mut run = Run::new(workload, config, &mut watched);
    while run.step() {
        if !goes_on.get() {
            return None;
        }
    }
    Some(run.report())
}

#[derive(Debug)]
struct Flight {
    sent: Sent,
    lease: Option<WorkerLease>,
}

struct Run<'a> {
    workload: &'a Workload,
    config: &'a FleetConfig,
    agenda: Agenda,
    now: Millis,
    ended: Millis,
    servers: Vec<Server>,
    brains: Brains<'a>,
    /// Arrival of each turn; the planned one until the turn arrives.
    arrival: Vec<Millis>,
    flights: Vec<Option<Flight>>,
    stranded: Vec<u32>,
    held: Vec<Held>,
    tally: Tally,
    warm_up: u32,
    observe: &'a mut dyn FnMut(Choice<'_>),
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, config: &'a FleetConfig, observe: &'a mut dyn FnMut(Choice<'_>)) -> Self {
        let caches = worker_cache::build(workload, config);
        let server = |(spec, cache): (&_, _)| Server::new(*spec, config.decode, cache);
        let mut run = Self {
            workload,
            config,
            agenda: Agenda::default(),
            now: Millis::ZERO,
            ended: Millis::ZERO,
            servers: config.workers.iter().zip(caches).map(server).collect(),
            brains: Brains::new(config, workload.block_tokens, workload.len()),
            arrival: arrivals(workload, config),
            flights: workload.items.iter().map(|_| None).collect(),
            stranded: Vec::new(),
            held: Vec::new(),
            tally: Tally::default(),
            warm_up: (workload.len() as f64 * config.warm_up) as u32,
            observe,
        };
        for (turn, item) in (0..).zip(&workload.items) {
            if item.is_first {
                run.agenda.at(run.arrival[turn as usize], Event::Arrive(turn));
            }
        }
        if run.brains.share() {
            run.agenda.at(ROLL_CALL, Event::RollCall);
        }
        let length = run.arrival.iter().copied().fold(Millis::ZERO, Millis::max);
        for (number, fault) in (0..).zip(&config.faults) {
            run.agenda.at(Millis(length.0 * fault.at), Event::Fault(number));
        }
        run
    }

    fn step(&mut self) -> bool {
        let Some((now, event)) = self.agenda.next() else {
            return false;
        };
        self.now = now;
        self.take(event);
        true
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrive(turn) => {
                self.arrival[turn as usize] = self.now;
                self.send(turn);
            }
            Event::Computed { worker, life } => self.computed(worker as usize, life),
            Event::Answered { turn, life } => self.answered(turn, life),
            Event::Look => self.look(),
            Event::Fault(number) => self.fault(number as usize),
            Event::Delivered { worker } => {
                for brain in self.brains.each() {
                    brain.beliefs.deliver(worker as usize);
                }
            }
            Event::Heard => self.brains.hear(self.now, &self.workload.items),
            Event::RollCall => self.roll_call(),
        }
    }

    fn send(&mut self, turn: u32) {
        let item = &self.workload.items[turn as usize];
        let arrival = Arrival {
            turn,
            at: self.arrival[turn as usize],
        };
        if self.config.hold.is_some() && self.config.routers.count == 1 {
            let held = self.brains.first().hold(self.now, &self.servers, arrival, item);
            self.held.push(held);
            return self.look();
        }
        let Some((sent, decision)) = self.brains.send(self.now, &self.servers, arrival, item) else {
            self.stranded.push(turn);
            return;
        };
        self.go(turn, sent, &decision);
    }

    fn look(&mut self) {
        let Some(hold) = self.config.hold.filter(|_| !self.held.is_empty()) else {
            return;
        };
        let items = &self.workload.items;
        let gone = self
            .brains
            .first()
            .release(self.now, &self.servers, hold, &mut self.held, items);
        for (turn, sent, decision) in gone {
            self.go(turn, sent, &decision);
        }
        if !self.held.is_empty()
            && let Some(room) = self.brains.first().next_room(self.now, hold)
        {
            self.agenda.at(self.now + room, Event::Look);
        }
    }

    fn go(&mut self, turn: u32, sent: Sent, decision: &Decision) {
        (self.observe)(Choice {
            turn,
            at: self.now,
            decision,
        });
        let worker = sent.worker;
        let (prefill, key) = (sent.prefill, sent.key);
        self.say(turn, Word::Sent { worker, prefill, key });
        for (at, server) in self.servers.iter_mut().enumerate() {
            if at != worker {
                server.cache.passed(turn);
            }
        }
        self.servers[worker].enqueue(turn, sent.key);
        self.flights[turn as usize] = Some(Flight { sent, lease: None });
        self.make_room(turn, worker);
        self.start_next(worker);
    }

    fn make_room(&mut self, turn: u32, worker: usize) {
        let server = &mut self.servers[worker];
        self.brains
            .of(turn)
            .make_room(self.now, worker, server, &self.workload.items);
    }

    fn start_next(&mut self, worker: usize) {
        let server = &mut self.servers[worker];
        if let Some(turn) = server.next() {
            let item = &self.workload.items[turn as usize];
            let takes = server.start(self.now, turn, item.prompt, &item.chain);
            self.computes(worker, takes);
            self.publish(worker);
        }
    }

    fn computes(&mut self, worker: usize, takes: Millis) {
        let life = self.servers[worker].life;
        let worker = worker as u32;
        self.agenda.at(self.now + takes, Event::Computed { worker, life });
    }

    fn say(&mut self, turn: u32, word: Word) {
        if let Some(delay) = self.brains.say(turn, word) {
            self.agenda.at(self.now + delay, Event::Heard);
        }
    }

    fn roll_call(&mut self) {
        let flights = &self.flights;
        let under_way = |turn: u32| flights[turn as usize].is_some();
        self.brains.roll_call(self.now, &self.workload.items, under_way);
        if !self.agenda.is_empty() {
            self.agenda.at(self.now + ROLL_CALL, Event::RollCall);
        }
    }

    fn publish(&mut self, worker: usize) {
        let changes = std::mem::take(&mut self.servers[worker].changes);
        let mut made = false;
        for brain in self.brains.each() {
            made |= brain.beliefs.publish(worker, &changes);
        }
        if made && let View::Events { delay, .. } = self.config.view {
            let worker = worker as u32;
            self.agenda.at(self.now + delay, Event::Delivered { worker });
        }
    }

    /// Handles a finished piece of the running prefill: starts the next piece, or records the first token.
    fn computed(&mut self, worker: usize, life: u32) {
        let server = &mut self.servers[worker];
        if server.life != life {
            return;
        }
        if let Some(takes) = server.advance() {
            self.computes(worker, takes);
            return;
        }
        let Some(computed) = server.computed() else {
            return;
        };
        self.ended = self.now;
        let turn = computed.turn;
        if let Some(flight) = &mut self.flights[turn as usize] {
            let item = &self.workload.items[turn as usize];
            self.brains.of(turn).first_token(
                self.now,
                &mut flight.sent,
                item,
                computed.uncached,
                computed.cached,
                self.arrival[turn as usize],
            );
            flight.lease = Some(computed.lease);
            let arrived = self.arrival[turn as usize];
            let record = TurnRecord {
                turn,
                worker: worker as u32,
                arrived_ms: arrived.0,
                ttft_ms: (self.now - arrived).0,
                predicted_ms: flight.sent.predicted_ttft.0,
                cached: computed.cached,
                uncached: computed.uncached,
                evict_first: flight.sent.evict_first,
            };
            let own = self.workload.items[turn as usize].objective;
            self.tally
                .count(record, own, turn >= self.warm_up, self.config.per_turn);
            self.say(turn, Word::Begun);
        }
        let response = self.workload.items[turn as usize].response;
        let decode_ms = self.config.decode.ms_per_token * response.as_f64();
        if decode_ms > 0.0 {
            self.agenda
                .at(self.now + Millis(decode_ms), Event::Answered { turn, life });
        } else {
            self.answered(turn, life);
        }
        self.start_next(worker);
        self.look();
    }

    /// Handles a complete response: the cache stores it, and the next turn may come.
    fn answered(&mut self, turn: u32, life: u32) {
        let worker = match &self.flights[turn as usize] {
            Some(flight) if self.servers[flight.sent.worker].life == life => flight.sent.worker,
            _ => return,
        };
        let Some(flight) = self.flights[turn as usize].take() else {
            return;
        };
        let item = &self.workload.items[turn as usize];
        let next_prompt = item
            .next
            .map(|next| self.workload.items[next as usize].new_tokens);
        let evict_first = self
            .brains
            .of(turn)
            .answered(self.now, flight.sent, item, next_prompt);
        self.say(turn, Word::Answered { evict_first });
        let keep = match evict_first {
            Tokens::ZERO => Keep::All,
            tail => Keep::First((item.prompt + item.response).saturating_sub(tail)),
        };
        if let Some(lease) = flight.lease {
            self.servers[worker].answered(lease, &item.reply, keep, &item.served(self.now));
            self.make_room(turn, worker);
            self.publish(worker);
        }
        self.follow(turn);
    }

    fn follow(&mut self, turn: u32) {
        if let Some(next) = self.workload.items[turn as usize].next {
            let at = self.arrival[next as usize].max(self.now);
            self.agenda.at(at, Event::Arrive(next));
        }
    }

    fn fault(&mut self, number: usize) {
        let fault = self.config.faults[number];
        let worker = fault.worker.index();
        let Some(server) = self.servers.get_mut(worker) else {
            return;
        };
        match fault.kind {
            FaultKind::Slow(factor) => server.slowness = factor,
            FaultKind::Return => {
                server.alive = true;
                server.slowness = 1.0;
                self.brains.set_ready(worker, true);
                for turn in std::mem::take(&mut self.stranded) {
                    self.send(turn);
                }
                self.look();
            }
            FaultKind::Die => self.die(worker),
        }
    }

    /// Handles a dead worker: turns without a first token are sent elsewhere; the others fail, and their conversations
    /// go on.
    fn die(&mut self, worker: usize) {
        let mut again = self.servers[worker].die();
        self.servers[worker].changes.clear();
        self.brains.set_ready(worker, false);
        for turn in 0..self.flights.len() {
            let here = |flight: &Flight| flight.sent.worker == worker;
            if !self.flights[turn].as_ref().is_some_and(here) {
                continue;
            }
            if let Some(flight) = self.flights[turn].take() {
                let item = &self.workload.items[turn];
                self.brains.of(turn as u32).failed(self.now, flight.sent, item);
                self.say(turn as u32, Word::Failed);
                if flight.lease.is_some() {
                    again.retain(|other| *other as usize != turn);
                    self.follow(turn as u32);
                }
            }
        }
        for turn in again {
            self.send(turn);
        }
    }

    fn report(self) -> FleetReport {
        let busy_ms = self.servers.iter().map(|server| server.busy_ms).sum();
        let unserved = (self.stranded.len() + self.held.len()) as u64;
        debug_assert!(self.brains.are_at_rest(), "a turn counts for ever");
        self.tally.report(self.config, busy_ms, self.ended, unserved)
    }
}

fn arrivals(workload: &Workload, config: &FleetConfig) -> Vec<Millis> {
    let mean = |of: fn(&super::WorkerSpec) -> f64| {
        config.workers.iter().map(of).sum::<f64>() / config.workers.len().max(1) as f64
    };
    let ms_per_s = match config.pace {
        Pace::Speed(speed) => 1e3 / speed,
        Pace::Load(load) => {
            let work = workload.work_ms(
                mean(|worker| worker.cost.alpha_ms_per_token),
                mean(|worker| worker.cost.beta_ms),
            );
            work / config.workers.len().max(1) as f64 / load / workload.span_s
        }
    };
    let mut rng = Pcg64::seed_from_u64(config.seed);
    let jitter = Uniform::new_inclusive(-config.jitter_s, config.jitter_s).ok();
    let origin = workload.items.first().map_or(0.0, |item| item.ts_s);
    workload
        .items
        .iter()
        .map(|item| {
            let jitter_s = jitter.map_or(0.0, |jitter| jitter.sample(&mut rng));
            Millis((item.ts_s - origin + jitter_s).max(0.0) * ms_per_s)
        })
        .collect()
}
