//! Recent turns and ξ of each worker: see [`policy::slo::feedback`].

use parking_lot::Mutex;
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::slo::feedback::{ObjectiveFeedback, ServedTurn, WorkerObjective};
use policy::units::{Millis, Tokens};

use super::Observation;

/// Recent turns and the margin of ξ, by worker.
#[derive(Debug, Default)]
pub struct Objectives(Mutex<Vec<WorkerTurns>>);

#[derive(Debug, Default)]
struct WorkerTurns {
    feedback: ObjectiveFeedback,
    tail: Tokens,
}

impl Objectives {
    fn with<T>(&self, worker: WorkerId, read: impl FnOnce(&mut WorkerTurns) -> T) -> T {
        let mut workers = self.0.lock();
        if workers.len() <= worker.index() {
            workers.resize_with(worker.index() + 1, WorkerTurns::default);
        }
        read(&mut workers[worker.index()])
    }

    /// Forgets a worker's turns.
    pub fn reset(&self, worker: WorkerId) {
        self.with(worker, |turns| *turns = WorkerTurns::default());
    }

    /// Records a turn if its time to first token was measured.
    pub fn served(&self, turn: &Observation, share: f64, configured: &[Millis]) {
        if !turn.ttft_is_measured {
            return;
        }
        let uncached = turn.prompt.saturating_sub(turn.cached);
        let prefill = match &turn.prefill {
            Some(sample) => sample.took(),
            None => turn.cost.prefill(uncached, turn.cached),
        };
        let served = ServedTurn {
            at: turn.ended,
            wait: turn.ttft.saturating_sub(prefill),
            ttft: turn.ttft,
            uncached,
            cached: turn.cached,
            objective: turn.objective_of,
        };
        self.with(turn.worker, |turns| {
            turns.feedback.served(served, share, configured)
        });
    }

    /// Returns the objective to send to a worker.
    pub fn tell(
        &self,
        worker: WorkerId,
        now: Millis,
        cost: &PrefillCost,
        share: f64,
        configured: &[Millis],
    ) -> WorkerObjective {
        self.with(worker, |turns| turns.feedback.tell(now, cost, share, configured))
    }

    /// Publishes the tail of a conversation that ξ leaves over on a worker.
    pub fn publish_tail(&self, worker: WorkerId, tail: Tokens) {
        self.with(worker, |turns| turns.tail = tail);
    }

    /// Returns the tail that was published last, for workers that cannot be sent an objective.
    #[must_use]
    pub fn tail(&self, worker: WorkerId) -> Tokens {
        self.with(worker, |turns| turns.tail)
    }
}
