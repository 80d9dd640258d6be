//! Tuning of the weight of FLOPs against recency, by replaying turns since a snapshot of the cache.
//!
//! 1. Until the first eviction the weight is 0: recency.
//! 2. At the first eviction a snapshot of the cache is taken, and from then on turns are recorded. (Replays from an
//!    empty cache gave weights that saved 1 % of the prompt tokens less than recency where recency was best.)
//! 3. When the window is full, its turns are replayed from the snapshot under each weight of a grid. The contents are
//!    ranked by the weight that saves most tokens, but a greater one must save 2 % more than a lesser: smaller gains
//!    often did not persist in the next window.
//! 4. A new window begins, with a new snapshot and twice as long, since the best weight changes.
//!
//! A replay starts with the estimates of the window's start, and then learns as the cache did. From Marconi (Pan et
//! al., arXiv 2411.19379, §4): the initial weight 0, the snapshot at the first eviction, the bootstrap window of a
//! multiple of the requests before it, the grid, hits as the aim, the replay off the request path. Ours: the multiple
//! (8), the grid's values and the margin, repeated windows, tokens saved instead of the hit rate, the re-ranking, and a
//! replay in line, whose cost (one replay per weight) its own turns pay.

pub(in crate::cache) const GRID: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Turns of the first window per turn before the first eviction.
pub(in crate::cache) const BOOTSTRAP: usize = 8;

/// A greater weight must save at least one part in `MARGIN` more.
pub(in crate::cache) const MARGIN: u64 = 50;

pub(in crate::cache) const GROWTH: usize = 2;

/// Upper bound on a window's records, in blocks or turns.
const MOST_WEIGHT: usize = 1 << 20;

pub(in crate::cache) trait Tunable: Clone {
    type Record;

    /// Ranks the contents, and later states, by this weight.
    fn reweigh(&mut self, weight: f64);

    fn replay(&mut self, record: &Self::Record) -> u64;
}

#[derive(Clone, Debug)]
pub(in crate::cache) struct Tuning<C: Tunable> {
    phase: Phase<C, C::Record>,
    turns: (usize, usize),
}

#[derive(Clone, Debug)]
enum Phase<C, R> {
    /// The weight is given, and never tuned.
    Off,
    /// Nothing has been evicted yet, in this many turns.
    Filling(usize),
    Window {
        snapshot: Box<C>,
        records: Vec<R>,
        /// Weight of the records, to bound their memory.
        weight: usize,
        turns: usize,
    },
}

impl<C: Tunable> Tuning<C> {
    /// Creates a tuning with windows of `turns` turns at least and at most; `None` where the weight is given.
    pub(in crate::cache) fn new(turns: Option<(usize, usize)>) -> Self {
        Self {
            phase: turns.map_or(Phase::Off, |_| Phase::Filling(0)),
            turns: turns.unwrap_or_default(),
        }
    }

    /// Records that the cache served a turn, with or without eviction. `record` makes the turn's record and its weight.
    pub(in crate::cache) fn served(
        &mut self,
        cache: &mut C,
        evicted: bool,
        record: impl FnOnce() -> (C::Record, usize),
    ) {
        match &mut self.phase {
            Phase::Off => {}
            Phase::Filling(turns) => {
                *turns += 1;
                if evicted {
                    let turns = (*turns * BOOTSTRAP).clamp(self.turns.0, self.turns.1);
                    self.phase = Phase::window(cache, turns);
                }
            }
            Phase::Window {
                snapshot,
                records,
                weight,
                turns,
            } => {
                let (record, more) = record();
                records.push(record);
                *weight += more;
                if records.len() < *turns && *weight < MOST_WEIGHT {
                    return;
                }
                cache.reweigh(best(snapshot.as_ref(), records));
                let turns = (*turns * GROWTH).min(self.turns.1);
                self.phase = Phase::window(cache, turns);
            }
        }
    }
}

impl<C: Tunable> Phase<C, C::Record> {
    fn window(cache: &C, turns: usize) -> Self {
        Self::Window {
            snapshot: Box::new(cache.clone()),
            records: Vec::new(),
            weight: 0,
            turns,
        }
    }
}

/// Returns the weight that saves most tokens, where a greater weight must exceed the margin.
fn best<C: Tunable>(snapshot: &C, records: &[C::Record]) -> f64 {
    let saved = |weight: f64| -> u64 {
        let mut cache = snapshot.clone();
        cache.reweigh(weight);
        records.iter().map(|record| cache.replay(record)).sum()
    };
    let mut best = (0.0, 0);
    for weight in GRID {
        let saved = saved(weight);
        if saved > best.1 + best.1 / MARGIN {
            best = (weight, saved);
        }
    }
    best.0
}
