//! The single writer: applies updates to the runs, one version step at a time.
//!
//! Reading order: [`store`] walks a chain and [`grow`] appends what is new; [`remove`] lowers a worker's reach and
//! [`trim`] shortens runs to their furthest holder, deferring some of the work as [`debt`]; [`split`] and [`merge`] cut
//! and join runs; [`family`] keeps the links between runs, [`members`] the workers' sums and lists, [`room`] the byte
//! budget; [`check`] states the invariants.
//!
//! During an operation each intermediate state is itself prefix-closed: a store works downwards, a removal upwards. So
//! a concurrent lookup sees the operation as done up to some key, never an inconsistent state.

mod check;
mod debt;
mod family;
mod grow;
mod members;
mod merge;
mod newest;
mod remove;
mod room;
mod split;
mod store;
mod trim;

use std::sync::Arc;

use super::heads::Heads;
use super::holders::{self, Holders};
use super::locator::{Locator, Place};
use super::pool::{Pool, Shared};
use super::run::{self, View};
use super::words::Words;
use super::{IndexLimits, IndexStats};
use crate::ids::{PrefixHash, WorkerId};
use crate::sync::{AtomicU32, SMALLEST_CHUNK_LOG2};
use debt::Debt;
use members::Worker;

/// Partial holders at which a run is split at their median: each costs a lookup about a nanosecond.
const MOST_PARTIALS: usize = 8;
/// Partial holders that a merge or an extension may leave: fewer, so that merges and splits do not alternate.
const FEW_PARTIALS: usize = 4;
/// Keys appended or evicted between checks of the budget.
const PIECE: usize = 256;

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pool: Pool,
    locator: Locator,
    workers: Vec<Worker>,
    lists: u64,
    limits: IndexLimits,
    /// The most recently used run; 0 for none.
    recent: u32,
    /// The least recently used run; 0 for none.
    stale: u32,
    max_run: u32,
    stats: IndexStats,
    /// Entries ever gained. A store's gain is the difference, independent of evictions.
    gained: u64,
    scratch: Holders,
    /// Position of the last removal. Engines free from the end, so the key before it is likely next.
    removed: Place,
    /// Runs that may merge with their only child after the operation.
    mergeable: Vec<u32>,
    debt: Debt,
}

impl Writer {
    pub(super) fn new(limits: IndexLimits) -> Self {
        let max_bytes = limits
            .max_bytes
            .clamp(IndexLimits::MIN_BYTES, IndexLimits::MAX_BYTES);
        let chunk_words = (max_bytes / 8 / 64)
            .next_power_of_two()
            .clamp(1 << SMALLEST_CHUNK_LOG2, 1 << 14);
        let chunks = max_bytes / (chunk_words * 8) + 8;
        let shared = Arc::new(Shared {
            words: Words::new(chunks as usize, (chunk_words / 16).ilog2()),
            roots: Heads::new(),
            branches: Heads::new(),
            groups: AtomicU32::new(1),
        });
        Self {
            pool: Pool::new(Arc::clone(&shared)),
            shared,
            locator: Locator::new(max_bytes / 24),
            workers: Vec::new(),
            lists: 0,
            limits: IndexLimits { max_bytes },
            recent: 0,
            stale: 0,
            max_run: (chunk_words / 8) as u32,
            stats: IndexStats::default(),
            gained: 0,
            scratch: Holders::default(),
            removed: Place { run: 0, depth: 0 },
            mergeable: Vec::new(),
            debt: Debt::default(),
        }
    }

    fn view(&self, run: u32) -> View {
        View::own(self.pool.line(run))
    }

    fn place_of(&self, key: PrefixHash) -> Option<Place> {
        let likely = self.removed;
        if likely.run != 0 {
            let view = self.view(likely.run);
            let off = likely.depth.wrapping_sub(view.start);
            if off < view.len && self.shared.words.load(view.keys + off) == key.0 {
                return Some(likely);
            }
        }
        let shared = &self.shared;
        self.locator.find(key.0, |place| {
            lives(shared, place) && key_at(shared, place) == key.0
        })
    }

    pub(super) fn holds(&self, worker: WorkerId, hash: PrefixHash) -> bool {
        let Some(place) = self.place_of(hash) else {
            return false;
        };
        let view = self.view(place.run);
        holders::reach_of(&self.shared.words, &view, worker.0) > place.depth - view.start
    }

    pub(super) fn entries_of(&self, worker: WorkerId) -> u64 {
        self.workers
            .get(worker.index())
            .map_or(0, |worker| worker.entries)
    }

    pub(super) fn stats(&self) -> IndexStats {
        IndexStats {
            bytes: self.bytes(),
            owed_keys: self.debt.keys,
            ..self.stats
        }
    }

    /// Returns the run's holders, decoded into the scratch buffer, which [`Self::put_scratch`] returns.
    fn take_holders(&mut self, run: u32) -> Holders {
        let mut holders = std::mem::take(&mut self.scratch);
        holders.load(&self.shared.words, &self.view(run));
        holders
    }

    fn take_holders_of(&mut self, view: &View) -> Holders {
        let mut holders = std::mem::take(&mut self.scratch);
        holders.load(&self.shared.words, view);
        holders
    }

    fn put_scratch(&mut self, holders: Holders) {
        self.scratch = holders;
    }

    pub(super) fn write_holders(&mut self, run: u32, holders: &mut Holders) {
        self.pool.line(run).open();
        holders.store(&mut self.pool, run);
        self.pool.line(run).close();
    }
}

/// Returns whether the place is before its run's end.
fn lives(shared: &Shared, place: Place) -> bool {
    let (start, len) = run::extent(shared.words.line(place.run));
    place.depth.wrapping_sub(start) < len
}

/// Returns the key at this place, or the one there before it left the run.
fn key_at(shared: &Shared, place: Place) -> u64 {
    let line = shared.words.line(place.run);
    let (start, _) = run::extent(line);
    shared.words.load(
        line.low(run::BLOCKS)
            .wrapping_add(place.depth.wrapping_sub(start)),
    )
}
