//! Requests on a worker, and its part of a routing snapshot.

use policy::cost::PrefillCost;
use policy::estimate::{PendingWork, QueueFigure, Reconciled, Ticket, Utilisation};
use policy::route::WorkerView;
use policy::units::{Millis, Tokens};

use super::Worker;

/// Turns sent to a worker, and their predicted cost.
#[derive(Debug)]
pub struct WorkerLoad {
    /// Prefill work of requests without a first token so far.
    pub pending: PendingWork,
    /// Utilisation ρ.
    pub utilisation: Utilisation,
    /// Number of this replica's requests on the worker.
    pub in_flight: u32,
    /// Number of requests on the worker that other replicas reported.
    pub others: u32,
    /// Prefill cost in force.
    pub cost: PrefillCost,
    /// Learned prefill cost, regardless of overrides.
    pub learned: PrefillCost,
    /// Time to first token beside queue and prefill, for engines that report both.
    pub overhead: Millis,
    /// The last queue figure that the engine reported, and the result of reconciling it.
    pub figure: Option<(QueueFigure, Reconciled)>,
}

impl Worker {
    /// Reconciles the predicted queue with the queue figure that the worker reports.
    pub fn reconcile(&self, now: Millis, mut figure: QueueFigure) -> Reconciled {
        let mut load = self.load.lock();
        figure.in_flight = figure.in_flight.max(load.in_flight + load.others);
        let mean = load.utilisation.mean_work();
        figure.mean_work = if mean > Millis::ZERO {
            mean
        } else {
            Millis(load.cost.beta_ms.max(load.cost.floor_ms))
        };
        let found = load.pending.reconcile(now, &figure);
        load.figure = Some((figure, found));
        found
    }

    /// Returns the worker's part of a routing snapshot. `is_eligible`: the request may be given to the worker.
    pub fn view(&self, now: Millis, is_eligible: bool, indexed: Tokens, conversations: f64) -> WorkerView {
        let load = self.load.lock();
        WorkerView {
            id: self.id,
            ready: self.is_ready() && is_eligible,
            cost: load.cost,
            overhead: load.overhead,
            wait: load.pending.wait(now),
            utilisation: load.utilisation.at(now),
            mean_work: load.utilisation.mean_work(),
            in_flight: load.in_flight + load.others,
            indexed,
            conversations,
        }
    }

    pub(crate) fn begins_as(&self, utilisation: Utilisation) {
        self.load.lock().utilisation = utilisation;
    }

    /// Reads the load under its lock.
    pub fn with_load<T>(&self, read: impl FnOnce(&WorkerLoad) -> T) -> T {
        read(&self.load.lock())
    }

    pub(crate) fn sent(&self, now: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.in_flight += 1;
        prefill.map(|work| {
            load.utilisation.add(now, work);
            load.pending.sent(now, work)
        })
    }

    /// Ends the wait of a request, of this replica or another. Returns its prefill time, if that is known.
    pub fn prefilled(&self, now: Millis, ticket: Ticket) -> Option<Millis> {
        self.load.lock().pending.first_token(now, ticket)
    }

    /// Ends the count of a request, and its wait if it got no first token.
    pub(crate) fn ended(&self, now: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        debug_assert!(load.in_flight > 0, "a request ends twice");
        load.in_flight = load.in_flight.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(now, ticket);
        }
    }

    /// Counts a request of another replica. `prefill` is its predicted prefill, if that is not over.
    pub fn others_sent(&self, at: Millis, prefill: Option<Millis>) -> Option<Ticket> {
        let mut load = self.load.lock();
        load.others += 1;
        prefill.map(|work| {
            load.utilisation.add(at, work);
            load.pending.sent(at, work)
        })
    }

    /// Ends the count of another replica's request, and its wait if it got no first token.
    pub fn others_ended(&self, at: Millis, ticket: Option<Ticket>) {
        let mut load = self.load.lock();
        load.others = load.others.saturating_sub(1);
        if let Some(ticket) = ticket {
            load.pending.gone(at, ticket);
        }
    }
}
