//! The last turns as every arm would have served them, at what prefills cost today.
//!
//! What a ghost knows of a turn is tokens: how many of the prompt it would have held. Milliseconds follow from the
//! worker's cost, and that may change under the window: a worker that takes twice as long makes every comparison of the
//! last thousand turns wrong by as much, and waiting until they have left the window takes as many turns again. So the
//! window keeps the tokens, and prices a worker's turns anew when its cost has moved by more than [`REPRICE_FROM`].
//!
//! It is a ring of [`LENGTH`] turns, some 70 bytes each, with running sums; of twice as many on an idle fleet, where late
//! turns are few and traffic comes slowly, so that as many of them are compared.

use std::collections::VecDeque;

use super::{ARMS, ServedTurn};
use crate::cost::PrefillCost;
use crate::ids::WorkerId;
use crate::units::Tokens;

/// Turns that are remembered under load, and on an idle fleet.
pub(super) const LENGTH: usize = 2048;
pub(super) const IDLE_LENGTH: usize = 2 * LENGTH;
/// Change of a worker's cost, as a share, from which its turns are priced anew.
const REPRICE_FROM: f64 = 0.03;
/// Turns between two times, so that a cost that will not rest costs a few microseconds a turn and not the whole window.
const REPRICE_EVERY: usize = 16;
/// Share of turns that [`Window::bound`] is about.
const SHARE: f64 = 0.95;

/// Tokens of a prompt that each arm would have held.
pub(super) type Cached = [u32; ARMS];

#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: u32,
    prompt: u32,
    wait_ms: f64,
    objective_ms: f64,
    cached: Cached,
}

/// What an arm came to over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// Excess over the objective.
    pub(super) tel_ms: f64,
    /// TTFT.
    pub(super) ttft_ms: f64,
    /// Prefill.
    pub(super) work_ms: f64,
    /// Turns beyond the objective.
    pub(super) late: f64,
    /// Squares of what the excess differs by from plain LRU's.
    pub(super) difference2: f64,
}

impl Sums {
    fn add(&mut self, other: &Self, sign: f64) {
        self.tel_ms += sign * other.tel_ms;
        self.ttft_ms += sign * other.ttft_ms;
        self.work_ms += sign * other.work_ms;
        self.late += sign * other.late;
        self.difference2 += sign * other.difference2;
    }
}

impl Entry {
    fn work_ms(&self, arm: usize, cost: &PrefillCost) -> f64 {
        let cached = Tokens(u64::from(self.cached[arm]));
        let uncached = Tokens(u64::from(self.prompt)).saturating_sub(cached);
        cost.prefill(uncached, cached).0
    }

    /// TTFT as a multiple of the objective.
    fn relative(&self, arm: usize, cost: &PrefillCost) -> f64 {
        (self.wait_ms + self.work_ms(arm, cost)) / self.objective_ms.max(1e-9)
    }

    /// What the turn adds to an arm's sums.
    fn sums(&self, arm: usize, cost: &PrefillCost) -> Sums {
        let work_ms = self.work_ms(arm, cost);
        let ttft_ms = self.wait_ms + work_ms;
        let tel_ms = (ttft_ms - self.objective_ms).max(0.0);
        let lru_ms = (self.wait_ms + self.work_ms(0, cost) - self.objective_ms).max(0.0);
        Sums {
            tel_ms,
            ttft_ms,
            work_ms,
            late: f64::from(u8::from(tel_ms > 0.0)),
            difference2: (tel_ms - lru_ms).powi(2),
        }
    }
}

/// The window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    /// At what each worker's turns are priced.
    costs: Vec<PrefillCost>,
    sums: [Sums; ARMS],
    /// Turns since the sums were added up afresh: they must not drift.
    since: usize,
    /// How often a changed cost made it price turns anew.
    pub(super) repriced: u64,
}

impl Window {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            costs: vec![PrefillCost::linear(0.0, 0.0); workers],
            sums: [Sums::default(); ARMS],
            since: REPRICE_EVERY,
            repriced: 0,
        }
    }

    /// A slot has a new holder: the turns of the last one were of another cache.
    pub(super) fn admit(&mut self, worker: WorkerId) {
        if self.costs.len() <= worker.index() {
            self.costs
                .resize(worker.index() + 1, PrefillCost::linear(0.0, 0.0));
        }
        self.costs[worker.index()] = PrefillCost::linear(0.0, 0.0);
        self.entries.retain(|entry| entry.worker != worker.0);
        self.sums = self.added_up();
    }

    /// Turns in it.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What an arm came to.
    pub(super) fn of(&self, arm: usize) -> &Sums {
        &self.sums[arm]
    }

    /// A turn of a worker that the window knows, and how much of it each arm would have held; `length` turns are kept.
    pub(super) fn push(&mut self, turn: &ServedTurn, cached: Cached, length: usize) {
        self.price(turn);
        while self.entries.len() >= length.max(1)
            && let Some(oldest) = self.entries.pop_front()
        {
            count(&mut self.sums, &self.costs, &oldest, -1.0);
        }
        let entry = Entry {
            worker: turn.worker.0,
            prompt: u32::try_from(turn.prompt.0).unwrap_or(u32::MAX),
            wait_ms: turn.wait.0,
            objective_ms: turn.objective.0,
            cached,
        };
        self.entries.push_back(entry);
        count(&mut self.sums, &self.costs, &entry, 1.0);
    }

    /// Sees to it that the worker's turns are priced at about what the turn's are.
    fn price(&mut self, turn: &ServedTurn) {
        self.since += 1;
        let Some(priced) = self.costs.get_mut(turn.worker.index()) else {
            return;
        };
        let [before, now] = [&*priced, &turn.cost].map(|cost| cost.prefill(turn.prompt, Tokens::ZERO).0);
        let moved = self.since > REPRICE_EVERY && (now - before).abs() > REPRICE_FROM * before;
        if moved {
            *priced = turn.cost;
            self.repriced += 1;
        }
        if moved || self.since > LENGTH {
            self.since = 0;
            self.sums = self.added_up();
        }
    }

    /// From now on what was known of `from[arm]` on a worker is known of `arm`.
    pub(super) fn remap(&mut self, worker: WorkerId, from: &[usize; ARMS]) {
        for entry in self.entries.iter_mut().filter(|entry| entry.worker == worker.0) {
            let before = entry.cached;
            entry.cached = from.map(|from| before[from]);
        }
        self.sums = self.added_up();
    }

    /// The sums, from the turns alone.
    pub(super) fn added_up(&self) -> [Sums; ARMS] {
        let mut sums = [Sums::default(); ARMS];
        for entry in &self.entries {
            count(&mut sums, &self.costs, entry, 1.0);
        }
        sums
    }

    /// TTFT of the 95th percentile of plain LRU's turns, as a multiple of the objective; `None` where the objective is
    /// missed, or there are no turns.
    pub(super) fn bound(&self) -> Option<f64> {
        let mut relative: Vec<f64> = self
            .priced()
            .map(|(entry, cost)| entry.relative(0, cost))
            .collect();
        let at = (relative.len().checked_sub(1)? as f64 * SHARE) as usize;
        let (_, bound, _) = relative.select_nth_unstable_by(at, f64::total_cmp);
        (*bound <= 1.0).then_some(*bound)
    }

    /// Whether the arm serves as large a share of them within this multiple of the objective.
    pub(super) fn keeps(&self, arm: usize, bound: f64) -> bool {
        let few = (1.0 - SHARE) * self.entries.len() as f64;
        let beyond = |(entry, cost): &(&Entry, &PrefillCost)| entry.relative(arm, cost) > bound;
        // Most arms that do not are known for it long before the last turn.
        self.priced().filter(beyond).nth(few as usize).is_none()
    }

    /// Turns, with what they are priced at.
    fn priced(&self) -> impl Iterator<Item = (&Entry, &PrefillCost)> {
        let cost = |entry: &Entry| self.costs.get(entry.worker as usize);
        self.entries
            .iter()
            .filter_map(move |entry| Some((entry, cost(entry)?)))
    }
}

fn count(sums: &mut [Sums; ARMS], costs: &[PrefillCost], entry: &Entry, sign: f64) {
    if let Some(cost) = costs.get(entry.worker as usize) {
        for (arm, sums) in sums.iter_mut().enumerate() {
            sums.add(&entry.sums(arm, cost), sign);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Millis;

    fn turn(worker: u32, prompt: u64, alpha: f64) -> ServedTurn {
        ServedTurn {
            worker: WorkerId(worker),
            conversation: 1,
            prompt: Tokens(prompt),
            history: Tokens(prompt / 2),
            length: Tokens(prompt),
            cost: PrefillCost::linear(alpha, 5.0),
            wait: Millis(1.0),
            objective: Millis(100.0),
            next_prompt: Tokens(10),
            utilisation: 0.0,
        }
    }

    fn close(window: &Window) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
        (window.sums.iter().zip(&window.added_up())).all(|(kept, counted)| {
            near(kept.tel_ms, counted.tel_ms)
                && near(kept.ttft_ms, counted.ttft_ms)
                && near(kept.work_ms, counted.work_ms)
                && near(kept.late, counted.late)
                && near(kept.difference2, counted.difference2)
        })
    }

    #[test]
    fn a_worker_that_slows_down_makes_all_of_its_window_dearer_and_nobody_elses() {
        let mut window = Window::new(2);
        (0..100).for_each(|_| window.push(&turn(0, 1000, 0.05), [500; ARMS], LENGTH));
        (0..100).for_each(|_| window.push(&turn(1, 1000, 0.05), [500; ARMS], LENGTH));
        assert!((window.of(0).work_ms - 200.0 * 30.0).abs() < 1e-6);
        window.push(&turn(0, 1000, 0.1), [500; ARMS], LENGTH);
        let dearer = 101.0 * 55.0 + 100.0 * 30.0;
        assert!((window.of(0).work_ms - dearer).abs() < 1e-6, "{:?}", window.of(0));
        assert!(close(&window));
    }

    #[test]
    fn an_arm_that_makes_more_turns_slow_than_lru_does_not_keep_them() {
        let mut window = Window::new(1);
        let mut cached = [900; ARMS];
        cached[3] = 500;
        (0..100).for_each(|_| window.push(&turn(0, 1000, 0.05), cached, LENGTH));
        let bound = window.bound().unwrap();
        assert!((bound - 0.11).abs() < 1e-9, "{bound}");
        assert!(window.keeps(1, bound) && !window.keeps(3, bound));
        // Where LRU misses the objective there is nothing to keep.
        (0..100).for_each(|_| window.push(&turn(0, 1000, 5.0), cached, LENGTH));
        assert_eq!(window.bound(), None);
    }

    #[test]
    fn it_remembers_as_many_turns_as_it_is_told_to() {
        let mut window = Window::new(1);
        (0..50).for_each(|_| window.push(&turn(0, 1000, 0.05), [500; ARMS], 50));
        assert_eq!(window.len(), 50);
        window.push(&turn(0, 1000, 0.05), [500; ARMS], 20);
        assert!(window.len() == 20 && close(&window));
    }

    proptest! {
        /// Beside its twin, which adds everything up.
        #[test]
        fn its_sums_are_what_its_turns_add_up_to(
            turns in prop::collection::vec((0u32..3, 1u64..3000, 1u32..5, 0u32..3000), 1..300),
        ) {
            let mut window = Window::new(3);
            for (at, (worker, prompt, alpha, cached)) in turns.iter().enumerate() {
                let held = std::array::from_fn(|arm| (cached / (arm as u32 + 1)).min(*prompt as u32 - 1));
                window.push(&turn(*worker, *prompt, f64::from(*alpha) / 20.0), held, 100);
                if at % 50 == 49 {
                    window.remap(WorkerId(*worker), &[0, 0, 1, 2, 3, 4, 5, 6, 8]);
                }
                prop_assert!(close(&window));
            }
        }
    }
}
