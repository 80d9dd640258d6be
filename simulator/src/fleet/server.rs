//! One worker: a queue, one prefill at a time, a prefix cache.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::worker_cache::{WorkerCache, WorkerLease};
use super::{Decode, WorkerSpec};
use crate::served::Served;
use policy::cache::{Change, Keep};
use policy::fingerprint::Chain;
use policy::units::{Millis, Tokens};

#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) turn: u32,
    /// Sort key in the queue: the least is taken first; ties in order of arrival.
    key: f64,
    order: u64,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.key.total_cmp(&self.key)).then(other.order.cmp(&self.order))
    }
}

#[derive(Debug)]
struct Running {
    turn: u32,
    lease: WorkerLease,
    cached: Tokens,
    done: Tokens,
    uncached: Tokens,
    started: bool,
}

#[derive(Debug)]
pub(super) struct Computed {
    pub(super) turn: u32,
    pub(super) lease: WorkerLease,
    pub(super) cached: Tokens,
    pub(super) uncached: Tokens,
}

#[derive(Debug)]
pub(super) struct Server {
    spec: WorkerSpec,
    decode: Decode,
    pub(super) cache: WorkerCache,
    queue: BinaryHeap<Queued>,
    running: Option<Running>,
    decoding: u32,
    pub(super) alive: bool,
    /// Number of deaths, to detect events scheduled before one.
    pub(super) life: u32,
    pub(super) slowness: f64,
    pub(super) busy_ms: f64,
    arrivals: u64,
    pub(super) changes: Vec<Change>,
}

impl Server {
    pub(super) fn new(spec: WorkerSpec, decode: Decode, cache: WorkerCache) -> Self {
        Self {
            spec,
            decode,
            cache,
            queue: BinaryHeap::new(),
            running: None,
            decoding: 0,
            alive: true,
            life: 0,
            slowness: 1.0,
            busy_ms: 0.0,
            arrivals: 0,
            changes: Vec::new(),
        }
    }

    pub(super) fn enqueue(&mut self, turn: u32, key: f64) {
        let order = self.arrivals;
        self.arrivals += 1;
        self.queue.push(Queued { turn, key, order });
    }

    pub(super) fn next(&mut self) -> Option<u32> {
        if self.running.is_some() {
            return None;
        }
        self.queue.pop().map(|queued| queued.turn)
    }

    /// Starts a prefill, and returns the time that its first piece takes.
    pub(super) fn start(&mut self, now: Millis, turn: u32, prompt: Tokens, chain: &Chain) -> Millis {
        self.cache.passed(turn);
        let lease = self.cache.acquire(now, chain, &mut self.changes);
        let cached = lease.hit_tokens().min(prompt.saturating_sub(Tokens(1)));
        self.running = Some(Running {
            turn,
            lease,
            cached,
            done: Tokens::ZERO,
            uncached: prompt.saturating_sub(cached),
            started: false,
        });
        self.advance().unwrap_or_default()
    }

    /// Returns the time that the next piece of the running prefill takes, or `None` if it is complete.
    pub(super) fn advance(&mut self) -> Option<Millis> {
        let running = self.running.as_mut()?;
        let left = running.uncached.saturating_sub(running.done);
        if left == Tokens::ZERO && running.started {
            return None;
        }
        let piece = match self.decode.chunk_tokens {
            0 => left,
            chunk => left.min(Tokens(chunk)),
        };
        let mut ms = self.spec.cost.marginal(piece, running.cached + running.done).0;
        if !running.started {
            ms += self.spec.cost.beta_ms;
        }
        ms += self.decode.interference_ms * f64::from(self.decoding);
        ms *= self.slowness;
        running.started = true;
        running.done += piece;
        self.busy_ms += ms;
        Some(Millis(ms))
    }

    pub(super) fn computed(&mut self) -> Option<Computed> {
        let running = self.running.take()?;
        self.decoding += 1;
        Some(Computed {
            turn: running.turn,
            lease: running.lease,
            cached: running.cached,
            uncached: running.uncached,
        })
    }

    pub(super) fn answered(&mut self, lease: WorkerLease, reply: &Chain, keep: Keep, turn: &Served) {
        self.decoding = self.decoding.saturating_sub(1);
        self.cache.release(lease, reply, keep, turn, &mut self.changes);
    }

    /// Stops the worker. Returns the turns without a first token: the one in prefill, then the queued ones.
    pub(super) fn die(&mut self) -> Vec<u32> {
        self.alive = false;
        self.life += 1;
        self.decoding = 0;
        self.cache.clear(&mut self.changes);
        let mut waiting: Vec<Queued> = std::mem::take(&mut self.queue).into_vec();
        waiting.sort_by_key(|queued| queued.order);
        let running = self.running.take().map(|running| running.turn);
        running
            .into_iter()
            .chain(waiting.into_iter().map(|queued| queued.turn))
            .collect()
    }
}
