//! How the weight of FLOPs against recency is tuned: by replaying what came since a snapshot of the cache.
//!
//! 1. Until the first eviction nothing is weighed, and the weight is 0: recency.
//! 2. At the first eviction a snapshot of the cache is taken, and from then on turns are recorded. (A replay that starts
//!    empty is another question: which states are worth having in a cache that fills up. It answered with weights that
//!    saved 1 % of the prompt tokens less than recency where recency was best.)
//! 3. When the window is full, the recorded turns are replayed under each weight of a grid, every one from the snapshot.
//!    The weight that saves most tokens is taken, but a greater one must save 2 % more than a lesser: a window's gain of
//!    less was gone in the next window as often as not. What is held is ranked by the new weight.
//! 4. A new window begins, with a snapshot of its own, twice as long: what was best changes, and so must be asked again.
//!
//! A replay learns nothing that the cache had not learned when the window began, and then what it learned since.
//!
//! # What is Marconi's and what is ours
//! Marconi's (Pan et al., arXiv 2411.19379, §4): the weight 0 to begin with, the snapshot at the first eviction, the
//! bootstrap window of a multiple of the requests seen before it, the grid, hits as the aim, the replay off the request's
//! path. Ours: the multiple (8), the grid's values and the margin, repeated windows, tokens saved instead of the rate of
//! hits, the re-ranking of what is held, and a replay in line, whose cost (one replay per weight) its own turns pay.

/// Weights tried.
pub(in crate::cache) const GRID: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Turns of the first window for each turn before the first eviction.
pub(in crate::cache) const BOOTSTRAP: usize = 8;

/// A greater weight must save more by one part in so many.
pub(in crate::cache) const MARGIN: u64 = 50;

/// How much longer the next window is.
pub(in crate::cache) const GROWTH: usize = 2;

/// Most that a window's records may weigh, in blocks or turns.
const MOST_WEIGHT: usize = 1 << 20;

/// A cache whose weight can be tuned.
pub(in crate::cache) trait Tunable: Clone {
    /// What a turn is recorded as.
    type Record;

    /// Ranks what is held, and what comes, by this weight.
    fn reweigh(&mut self, weight: f64);

    /// Serves a recorded turn; returns the tokens that the cache saved it.
    fn replay(&mut self, record: &Self::Record) -> u64;
}

/// Tunes a cache's weight, turn by turn.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Tuning<C: Tunable> {
    phase: Phase<C, C::Record>,
    /// Fewest and most turns of a window.
    turns: (usize, usize),
}

#[derive(Clone, Debug)]
enum Phase<C, R> {
    /// The weight is given.
    Off,
    /// Nothing was evicted yet, in so many turns.
    Filling(usize),
    Window {
        snapshot: Box<C>,
        records: Vec<R>,
        /// What they weigh, for a bound on their memory.
        weight: usize,
        turns: usize,
    },
}

impl<C: Tunable> Tuning<C> {
    /// Windows of so many turns at least and at most; `None` where the weight is given.
    pub(in crate::cache) fn new(turns: Option<(usize, usize)>) -> Self {
        Self {
            phase: turns.map_or(Phase::Off, |_| Phase::Filling(0)),
            turns: turns.unwrap_or_default(),
        }
    }

    /// The cache just served a turn, and evicted or not. `record` makes the turn's record and says what it weighs.
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

/// The weight to take: whichever saves most, but a greater one only for a gain that is worth it.
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
