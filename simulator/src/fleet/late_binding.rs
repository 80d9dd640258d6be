//! Late binding: while its worker is busy, a turn waits in the router instead of in the worker's queue.
//!
//! A turn sent to a busy worker is bound to a position in its queue, even when another worker becomes free sooner. So
//! nothing is sent to a worker with more than [`Deferral::within`] of prefill queued. Each pass places the waiting
//! turns anew, by their [due times](policy::route::due) ([`Patience::IN_ROUTER`](policy::route::Patience::IN_ROUTER)).
//!
//! Placing is the ordinary choice, with each worker's wait extended by the prefills placed there earlier in the pass. A
//! turn placed on a worker with room is sent. Another stays in the router, and its placement counts for this pass only.
//! Each pass is another chance to leave a prefix, so [`settings`] charge more for moving away.

use policy::route::{Decision, Settings, Snapshot, Turn, WorkerView, decide};
use policy::units::{Millis, Tokens};

/// Factor on the `locality` weight.
const LOCALITY: f64 = 1.5;

/// Upper bound on the turns placed in one pass, which bounds the cost of a pass.
pub const MAX_PLACED: usize = 64;

/// Settings of late binding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deferral {
    /// Predicted queued prefill up to which a worker is sent another turn.
    pub within: Millis,
}

/// Returns the least prefill of a turn over the ready workers; zero without any.
pub fn least_prefill(workers: &[WorkerView], prompt: Tokens, resident: &[Tokens]) -> Millis {
    let on = |(worker, resident): (&WorkerView, &Tokens)| {
        let cached = (*resident).min(prompt.saturating_sub(Tokens(1)));
        worker.cost.prefill(prompt.saturating_sub(cached), cached)
    };
    let ready = workers.iter().zip(resident).filter(|(worker, _)| worker.ready);
    ready.map(on).reduce(Millis::min).unwrap_or_default()
}

/// Returns the settings for placing turns that may be held.
pub fn settings(settings: &Settings) -> Settings {
    let mut held = settings.clone();
    held.weights.locality *= LOCALITY;
    for own in held.classes.values_mut().chain(held.named.values_mut()) {
        own.weights.locality = own.weights.locality.map(|locality| locality * LOCALITY);
    }
    held
}

/// One pass over the waiting turns.
#[derive(Clone, Debug)]
pub struct Plan {
    within: Millis,
    /// Prefill placed on each worker in this pass and not sent.
    ahead: Vec<Millis>,
    left: usize,
}

/// The placement of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The choice, by the waits including turns placed earlier in the pass.
    pub decision: Decision,
    /// Whether the worker has room for the turn now.
    pub goes: bool,
}

impl Plan {
    /// Starts a pass with nothing placed.
    pub fn new(hold: Deferral, workers: usize) -> Self {
        Self {
            within: hold.within,
            ahead: vec![Millis::ZERO; workers],
            left: MAX_PLACED,
        }
    }

    /// Adds work on its way to a worker that is not yet part of its predicted wait.
    pub fn add(&mut self, worker: usize, prefill: Millis) {
        if let Some(ahead) = self.ahead.get_mut(worker) {
            *ahead += prefill;
        }
    }

    /// Returns whether the pass can send no further turn, given each worker's predicted wait (`None` if not ready).
    pub fn is_over(&self, waits: impl IntoIterator<Item = Option<Millis>>) -> bool {
        let mut waits = waits.into_iter().zip(&self.ahead);
        self.left == 0 || waits.all(|(wait, ahead)| wait.is_none_or(|wait| wait.0 + ahead.0 > self.within.0))
    }

    /// Places the next turn; `None` if no worker is ready. The caller sends a turn that goes, or calls [`Plan::add`].
    pub fn place(
        &mut self,
        workers: &mut [WorkerView],
        settings: &Settings,
        sequence: u64,
        turn: &Turn<'_>,
    ) -> Option<Placed> {
        self.left = self.left.saturating_sub(1);
        for (worker, ahead) in workers.iter_mut().zip(&self.ahead) {
            worker.wait += *ahead;
        }
        let snapshot = Snapshot {
            workers,
            settings,
            sequence,
        };
        let decision = decide(&snapshot, turn)?;
        let terms = decision.chosen();
        let goes = terms.wait_ms <= self.within.0;
        if !goes {
            let prefill = terms.prefill();
            self.add(decision.chosen, prefill);
        }
        Some(Placed { decision, goes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::cost::PrefillCost;
    use policy::ids::WorkerId;

    fn worker(id: u32, wait: f64) -> WorkerView {
        WorkerView {
            id: WorkerId(id),
            ready: true,
            cost: PrefillCost::linear(0.1, 0.0),
            overhead: Millis::ZERO,
            wait: Millis(wait),
            utilisation: 0.5,
            mean_work: Millis(100.0),
            in_flight: 0,
            indexed: Tokens::ZERO,
            conversations: 0.0,
        }
    }

    fn place(plan: &mut Plan, waits: [f64; 2], prompt: u64, resident: [u64; 2]) -> (usize, bool) {
        let mut workers = [worker(0, waits[0]), worker(1, waits[1])];
        let turn = Turn {
            prompt: Tokens(prompt),
            resident: &resident.map(Tokens),
            objective: Millis(1000.0),
            last_worker: None,
            conversation: None,
            head: None,
            class: "",
            ask: None,
        };
        let placed = plan
            .place(&mut workers, &Settings::default(), 0, &turn)
            .expect("a worker is ready");
        (placed.decision.chosen, placed.goes)
    }

    fn plan() -> Plan {
        Plan::new(Deferral { within: Millis(50.0) }, 2)
    }

    #[test]
    fn a_turn_goes_where_there_is_room_and_waits_where_its_prefix_is_worth_it() {
        assert_eq!(place(&mut plan(), [40.0, 900.0], 1000, [0, 0]), (0, true));
        assert_eq!(place(&mut plan(), [60.0, 0.0], 8000, [7990, 0]), (0, false));
    }

    #[test]
    fn those_who_wait_for_a_worker_see_each_other() {
        let mut plan = plan();
        let mut placed = Vec::new();
        for _ in 0..9 {
            placed.push(place(&mut plan, [60.0, 0.0], 8000, [6000, 0]));
        }
        assert_eq!(placed[0], (0, false), "its prefix is worth the wait");
        assert!(
            placed.contains(&(1, true)),
            "behind so many others it is not: {placed:?}"
        );
    }

    #[test]
    fn a_look_is_over_when_no_worker_has_room_or_enough_were_placed() {
        let mut full = plan();
        assert!(!full.is_over([Some(Millis(900.0)), Some(Millis(50.0))]));
        assert!(full.is_over([Some(Millis(900.0)), None]));
        full.add(1, Millis(1.0));
        assert!(full.is_over([Some(Millis(900.0)), Some(Millis(50.0))]));
        let mut long = plan();
        for _ in 0..MAX_PLACED {
            assert!(!long.is_over([Some(Millis::ZERO); 2]));
            place(&mut long, [0.0, 0.0], 10, [0, 0]);
        }
        assert!(long.is_over([Some(Millis::ZERO); 2]));
    }

    #[test]
    fn what_a_prefill_takes_at_least_is_told_by_ready_workers_alone() {
        let mut workers = [worker(0, 0.0), worker(1, 0.0)];
        let resident = [Tokens(900), Tokens(100)];
        let least = |workers: &[WorkerView]| least_prefill(workers, Tokens(1000), &resident).0;
        assert!((least(&workers) - 10.0).abs() < 1e-9);
        workers[0].ready = false;
        assert!((least(&workers) - 90.0).abs() < 1e-9);
        workers[1].ready = false;
        assert_eq!(least(&workers), 0.0);
    }
}
