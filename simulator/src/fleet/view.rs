//! The router's beliefs about the workers' caches.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_distr::{Distribution, Uniform};
use rand_pcg::Pcg64;
use rustc_hash::FxHashMap;

use super::server::Server;
use policy::cache::Change;
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, Reach};
use policy::residency::{Reply, Reservation, Residency};
use policy::units::{Millis, Tokens};

/// The source of the beliefs. In any view, blocks in flight to a worker count as resident there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum View {
    /// The true contents, without delay: the upper bound of any evidence.
    Exact,
    /// The router's index, fed by a mirror of each worker's cache, as where workers publish no events.
    #[default]
    Mirror,
    /// A mirror of this many tokens per worker: the tree of routers that do not follow evictions (SGLang: some 2^24).
    Tree(Tokens),
    /// The router's index, fed by the workers' events. After a gap a worker is forgotten, then relearned from stores.
    Events {
        /// Delay of an event.
        delay: Millis,
        /// Share of batches lost.
        loss: f64,
    },
}

#[derive(Debug)]
pub(super) enum Beliefs {
    Exact(InFlight),
    Mirror(Box<Residency>),
    Events(Box<Listener>),
}

/// Counts of blocks in flight per worker.
#[derive(Debug)]
pub(super) struct InFlight(Vec<FxHashMap<PrefixHash, u32>>);

#[derive(Debug)]
struct Batch {
    number: u64,
    changes: Vec<Change>,
}

#[derive(Debug)]
pub(super) struct Listener {
    index: Index,
    in_flight: InFlight,
    under_way: Vec<VecDeque<Batch>>,
    /// Batches made, by worker.
    made: Vec<u64>,
    /// Number of the batch expected next, by worker.
    expected: Vec<u64>,
    block_tokens: u64,
    rng: Pcg64,
    loss: f64,
}

impl InFlight {
    fn new(workers: usize) -> Self {
        Self(vec![FxHashMap::default(); workers])
    }

    fn add(&mut self, worker: usize, chain: &Chain) {
        for hash in chain.hashes() {
            *self.0[worker].entry(*hash).or_insert(0) += 1;
        }
    }

    fn remove(&mut self, worker: usize, chain: &Chain) {
        for hash in chain.hashes() {
            if let Some(count) = self.0[worker].get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    self.0[worker].remove(hash);
                }
            }
        }
    }

    /// Returns the leading keys of the chain that are all in flight, or resident by `or`.
    fn reach(&self, worker: usize, chain: &Chain, or: impl Fn(PrefixHash) -> bool) -> usize {
        let held = |hash: &&PrefixHash| or(**hash) || self.0[worker].contains_key(*hash);
        chain.hashes().iter().take_while(held).count()
    }
}

impl Beliefs {
    pub(super) fn new(view: View, capacities: &[Tokens], block_tokens: u32, seed: u64) -> Self {
        let workers = capacities.len();
        let limits = IndexLimits { max_bytes: 1 << 30 };
        match view {
            View::Exact => Self::Exact(InFlight::new(workers)),
            View::Mirror => Self::Mirror(Box::new(Residency::new(limits, capacities))),
            View::Tree(size) => Self::Mirror(Box::new(Residency::new(limits, &vec![size; workers]))),
            View::Events { loss, .. } => Self::Events(Box::new(Listener {
                index: Index::new(limits),
                in_flight: InFlight::new(workers),
                under_way: (0..workers).map(|_| VecDeque::new()).collect(),
                made: vec![0; workers],
                expected: vec![0; workers],
                block_tokens: u64::from(block_tokens),
                rng: Pcg64::seed_from_u64(seed ^ 0x6c6f_7373),
                loss,
            })),
        }
    }

    /// Looks up the leading tokens of the chain on each worker, and the tokens that each holds in all.
    pub(super) fn look_up(
        &self,
        servers: &[Server],
        chain: &Chain,
        reach: &mut Reach,
        resident: &mut Vec<Tokens>,
        indexed: &mut Vec<Tokens>,
    ) {
        resident.clear();
        indexed.clear();
        match self {
            Self::Exact(in_flight) => {
                for (at, server) in servers.iter().enumerate() {
                    let keys = in_flight.reach(at, chain, |hash| server.cache.contains(hash));
                    resident.push(Tokens(chain.span(keys)));
                    indexed.push(server.cache.used());
                }
            }
            Self::Mirror(residency) => {
                residency.lookup(chain.hashes(), reach);
                for at in 0..servers.len() {
                    let worker = WorkerId(at as u32);
                    resident.push(Tokens(chain.span(reach.of(worker) as usize)));
                    indexed.push(residency.tokens_on(worker));
                }
            }
            Self::Events(listener) => {
                listener.index.lookup(chain.hashes(), reach);
                for at in 0..servers.len() {
                    let worker = WorkerId(at as u32);
                    let known = reach.of(worker) as usize;
                    let rest = listener
                        .in_flight
                        .reach(at, chain, |hash| listener.index.holds(worker, hash));
                    resident.push(Tokens(chain.span(known.max(rest))));
                    indexed.push(Tokens(listener.index.entries_of(worker) * listener.block_tokens));
                }
            }
        }
    }

    pub(super) fn sent(&mut self, worker: usize, chain: &Chain) -> Option<Reservation> {
        match self {
            Self::Exact(in_flight) => in_flight.add(worker, chain),
            Self::Events(listener) => listener.in_flight.add(worker, chain),
            Self::Mirror(residency) => return residency.sent(WorkerId(worker as u32), chain, |end| end),
        }
        None
    }

    /// Records a complete response; the last `evict_first` of `total` tokens may be evicted first.
    pub(super) fn settled(
        &mut self,
        worker: usize,
        chain: &Chain,
        reply: &Chain,
        hold: Option<Reservation>,
        evict_first: Tokens,
        total: Tokens,
    ) {
        match (self, hold) {
            (Self::Mirror(residency), Some(hold)) => {
                let reply = (!reply.is_empty()).then(|| Reply {
                    parent: chain.last(),
                    chain: reply,
                    before: chain.span(chain.len()),
                    open: false,
                });
                residency.settle(hold, reply, |end| end, evict_first, total);
            }
            (Self::Exact(in_flight), _) => in_flight.remove(worker, chain),
            (Self::Events(listener), _) => listener.in_flight.remove(worker, chain),
            (Self::Mirror(_), None) => {}
        }
    }

    pub(super) fn retracted(&mut self, worker: usize, chain: &Chain, hold: Option<Reservation>) {
        match (self, hold) {
            (Self::Mirror(residency), Some(hold)) => residency.retract(hold),
            (Self::Exact(in_flight), _) => in_flight.remove(worker, chain),
            (Self::Events(listener), _) => listener.in_flight.remove(worker, chain),
            (Self::Mirror(_), None) => {}
        }
    }

    pub(super) fn room_on(&self, worker: usize, server: &Server) -> Tokens {
        match self {
            Self::Mirror(residency) => residency.room_on(WorkerId(worker as u32)),
            Self::Exact(_) | Self::Events(_) => server.cache.room(),
        }
    }

    pub(super) fn trimmed(
        &mut self,
        worker: usize,
        keys: impl IntoIterator<Item = PrefixHash>,
        keep: Tokens,
    ) {
        if let Self::Mirror(residency) = self {
            let _ = residency.trimmed(WorkerId(worker as u32), keys, keep);
        }
    }

    pub(super) fn forget(&mut self, worker: usize) {
        match self {
            Self::Exact(_) => {}
            Self::Mirror(residency) => residency.forget(WorkerId(worker as u32)),
            Self::Events(listener) => {
                listener.index.forget(WorkerId(worker as u32));
                listener.under_way[worker].clear();
                listener.expected[worker] = listener.made[worker];
            }
        }
    }

    /// Records changes of a worker's cache. Returns whether a batch is now in transit.
    pub(super) fn publish(&mut self, worker: usize, changes: &[Change]) -> bool {
        if let Self::Events(listener) = self
            && !changes.is_empty()
        {
            let number = listener.made[worker];
            listener.made[worker] += 1;
            let changes = changes.to_vec();
            listener.under_way[worker].push_back(Batch { number, changes });
            return true;
        }
        false
    }

    pub(super) fn deliver(&mut self, worker: usize) {
        if let Self::Events(listener) = self {
            listener.deliver(worker);
        }
    }
}

impl Listener {
    fn deliver(&mut self, slot: usize) {
        let Some(batch) = self.under_way[slot].pop_front() else {
            return;
        };
        let lost = Uniform::new(0.0, 1.0).is_ok_and(|unit| unit.sample(&mut self.rng) < self.loss);
        if lost {
            return;
        }
        let worker = WorkerId(slot as u32);
        if batch.number != self.expected[slot] {
            self.index.forget(worker);
        }
        self.expected[slot] = batch.number + 1;
        for change in batch.changes {
            match change {
                // Blocks below a forgotten parent cannot be placed; they are relearned with their next root.
                Change::Stored { hash, parent } => {
                    let _ = self.index.store_after(worker, parent, &[hash]);
                }
                Change::Removed { hash } => {
                    self.index.remove(worker, hash);
                }
                Change::Cleared => {
                    self.index.forget(worker);
                }
            }
        }
    }
}
