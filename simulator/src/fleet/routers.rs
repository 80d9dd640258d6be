//! Several routers in front of the same workers: each turn goes to one of them, which may share its decisions.

use std::collections::VecDeque;
use std::fmt;

use rand::SeedableRng;
use rand_distr::{Distribution, Uniform};
use rand_pcg::Pcg64;
use rustc_hash::FxHashSet;

use super::FleetConfig;
use super::brain::{Arrival, Brain, Sent};
use super::foreign::{Foreign, Word};
use super::server::Server;
use super::workload::Item;
use policy::route::Decision;
use policy::units::Millis;

/// The number of routers and their sharing. Cache events reach all of them; each learns costs from its own responses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routers {
    /// Number of routers, at least one. A turn goes to a random one, as behind a balancer without affinity.
    pub count: usize,
    /// Sharing of sent, begun, answered and failed turns; `None` if nothing is shared.
    pub sharing: Option<Sharing>,
}

/// Properties of the sharing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// Delay of a message.
    pub delay: Millis,
    /// Share of messages that a router does not receive. Every second each router announces its turns in flight.
    pub loss: f64,
}

impl Default for Routers {
    fn default() -> Self {
        Self {
            count: 1,
            sharing: None,
        }
    }
}

impl fmt::Display for Routers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { count: 1, .. } => f.write_str("1"),
            Self { count, sharing: None } => write!(f, "{count}:alone"),
            Self {
                count,
                sharing: Some(sharing),
            } => write!(f, "{count}:{}:{}", sharing.delay.0, sharing.loss),
        }
    }
}

/// Interval at which each router announces its turns in flight.
pub(super) const ROLL_CALL: Millis = Millis(1000.0);

#[derive(Clone, Copy, Debug)]
struct Said {
    from: usize,
    turn: u32,
    word: Word,
}

#[derive(Debug)]
pub(super) struct Brains<'a> {
    all: Vec<Brain<'a>>,
    of: Vec<usize>,
    sharing: Option<Sharing>,
    said: VecDeque<Said>,
    rng: Pcg64,
}

impl<'a> Brains<'a> {
    pub(super) fn new(config: &'a FleetConfig, block_tokens: u32, turns: usize) -> Self {
        let count = config.routers.count.max(1);
        let mut rng = Pcg64::seed_from_u64(config.seed ^ 0x726f_7574);
        let any = Uniform::new(0, count).ok();
        let of = (0..turns).map(|_| any.map_or(0, |any| any.sample(&mut rng)));
        Self {
            of: of.collect(),
            all: (0..count)
                .map(|number| Brain::new(config, block_tokens, config.seed.wrapping_add(number as u64)))
                .collect(),
            sharing: config.routers.sharing.filter(|_| count > 1),
            said: VecDeque::new(),
            rng,
        }
    }

    pub(super) fn of(&mut self, turn: u32) -> &mut Brain<'a> {
        &mut self.all[self.of[turn as usize]]
    }

    /// Returns the first router, which is the only one where turns are held.
    pub(super) fn first(&mut self) -> &mut Brain<'a> {
        &mut self.all[0]
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Brain<'a>> {
        self.all.iter_mut()
    }

    pub(super) fn set_ready(&mut self, worker: usize, ready: bool) {
        self.each().for_each(|brain| brain.set_ready(worker, ready));
    }

    pub(super) fn share(&self) -> bool {
        self.sharing.is_some()
    }

    pub(super) fn send(
        &mut self,
        now: Millis,
        servers: &[Server],
        arrival: Arrival,
        item: &Item,
    ) -> Option<(Sent, Decision)> {
        self.of(arrival.turn).send(now, servers, arrival, item)
    }

    /// Sends a message about a turn to the other routers. Returns the message's delay, if sharing is on.
    pub(super) fn say(&mut self, turn: u32, word: Word) -> Option<Millis> {
        let sharing = self.sharing?;
        let from = self.of[turn as usize];
        self.said.push_back(Said { from, turn, word });
        Some(sharing.delay)
    }

    /// Delivers the oldest message in transit to the others, except where it is lost.
    pub(super) fn hear(&mut self, now: Millis, items: &[Item]) {
        let (Some(said), Some(sharing)) = (self.said.pop_front(), self.sharing) else {
            return;
        };
        let unit = Uniform::new(0.0, 1.0).ok();
        for (at, brain) in self.all.iter_mut().enumerate() {
            let lost = unit.is_some_and(|unit| unit.sample(&mut self.rng) < sharing.loss);
            if at != said.from && !lost {
                brain.hear(now, said.turn, said.word, &items[said.turn as usize]);
            }
        }
    }

    pub(super) fn are_at_rest(&self) -> bool {
        let idle = |brain: &Brain<'_>| brain.loads.iter().all(|load| load.in_flight == 0);
        self.sharing.is_some_and(|sharing| sharing.loss > 0.0) || self.all.iter().all(idle)
    }

    /// Lets each router announce its turns in flight; the others drop everything else that they count for it.
    pub(super) fn roll_call(&mut self, now: Millis, items: &[Item], under_way: impl Fn(u32) -> bool) {
        let said: FxHashSet<u32> = self.said.iter().map(|said| said.turn).collect();
        for brain in &mut self.all {
            let mut over: Vec<u32> = (brain.foreign.keys().copied())
                .filter(|turn| !under_way(*turn) && !said.contains(turn))
                .collect();
            over.sort_unstable();
            for turn in over {
                brain.hear(now, turn, Word::Failed, &items[turn as usize]);
            }
        }
    }
}

impl Brain<'_> {
    fn hear(&mut self, now: Millis, turn: u32, word: Word, item: &Item) {
        match word {
            Word::Sent { worker, prefill, key } => {
                self.over(now, turn, item);
                self.sequence += 1;
                let ticket = self.loads[worker].sent(now, turn, prefill, key);
                self.placed(now, item.conversation, worker);
                let hold = self.beliefs.sent(worker, &item.chain);
                let ticket = Some(ticket);
                self.foreign.insert(turn, Foreign { worker, ticket, hold });
            }
            Word::Begun => {
                if let Some(foreign) = self.foreign.get_mut(&turn) {
                    self.loads[foreign.worker].first_token(now, turn, foreign.ticket.take());
                }
            }
            Word::Answered { evict_first } => {
                if let Some(foreign) = self.foreign.remove(&turn) {
                    let load = &mut self.loads[foreign.worker];
                    load.ended(now, turn, foreign.ticket);
                    self.beliefs.settled(
                        foreign.worker,
                        &item.chain,
                        &item.reply,
                        foreign.hold,
                        evict_first,
                        item.prompt + item.response,
                    );
                }
            }
            Word::Failed => self.over(now, turn, item),
        }
    }

    fn over(&mut self, now: Millis, turn: u32, item: &Item) {
        if let Some(foreign) = self.foreign.remove(&turn) {
            self.loads[foreign.worker].ended(now, turn, foreign.ticket);
            self.beliefs.retracted(foreign.worker, &item.chain, foreign.hold);
        }
    }
}
