//! A ring of recent routing decisions, each with every term of its scores and its outcome.
//!
//! ```text
//! path/flight (an attempt is sent) ──▶ Decisions::record ──▶ a slot of the ring ──▶ admin: GET /admin/v1/decisions
//! path/account (first token, end) ───▶ Decisions::update ──────────┘
//! ```
//!
//! All slots have the same size and are allocated at the start. Of a large fleet, the chosen worker and the
//! [`ROWS`]` − 1` next ones are kept; [`slot::Rest`] summarises the others. A decision locks only its own slot, for as
//! long as it takes to write about 1.4 KiB.

mod slot;
mod verdict;
pub mod view;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::route::Decision;
use policy::units::{Millis, Tokens};

pub use slot::{Came, ROWS, Rest, Row, Slot};
use telemetry::context::TraceId;

/// A decision to be recorded.
#[derive(Debug)]
pub struct NewDecision<'a> {
    pub request: &'a [u8],
    pub trace: Option<TraceId>,
    /// Key of the conversation.
    pub conversation: Option<u64>,
    /// Requested model.
    pub model: &'a str,
    /// Class of the objective.
    pub class: &'a str,
    /// Objective for the time to first token.
    pub objective: Millis,
    pub arrived: Millis,
    /// Time from arrival until the attempt was sent.
    pub held: Millis,
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// Policy or weights that the request asks for, as written.
    pub asked: &'a str,
    pub decision: &'a Decision,
}

/// Position of a recorded decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Conditions on decisions; absent ones match all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Id of the request.
    pub request: Option<String>,
    /// Trace of the request.
    pub trace: Option<TraceId>,
    /// Number of the decision, as in the response header.
    pub decision: Option<u64>,
    /// Slot of the chosen worker, and the time at which that worker joined.
    pub worker: Option<(u32, Millis)>,
    /// Class of the objective.
    pub class: Option<String>,
    /// Whether the objective was missed.
    pub late: Option<bool>,
    /// Whether the turn has ended.
    pub finished: Option<bool>,
    /// Cause for which the objective was missed.
    pub cause: Option<policy::slo::Cause>,
    /// Earliest time of the first token; turns without one are compared by their arrival.
    pub from: Option<Millis>,
    /// Latest time of the first token; turns without one are compared by their arrival.
    pub until: Option<Millis>,
}

/// A ring of recent decisions.
#[derive(Debug)]
pub struct Decisions {
    slots: Box<[Mutex<Slot>]>,
    next: AtomicU64,
}

impl Decisions {
    /// Creates a ring of at most `max_bytes`; empty if one slot does not fit.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        let slots = max_bytes / size_of::<Mutex<Slot>>();
        Self {
            slots: (0..slots).map(|_| Mutex::new(Slot::EMPTY)).collect(),
            next: AtomicU64::new(0),
        }
    }

    /// Returns the largest number of decisions kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, position: u64) -> Option<&Mutex<Slot>> {
        let count = self.slots.len() as u64;
        let at = position.checked_rem(count)?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// Records a decision. Returns `None` if the ring is empty.
    pub fn record(&self, made: &NewDecision<'_>) -> Option<Ticket> {
        if self.slots.is_empty() {
            return None;
        }
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        self.slot(position)?.lock().write(position, made);
        Some(Ticket(position))
    }

    /// Updates the outcome of a decision, if the ring still has it.
    pub fn update(&self, ticket: Ticket, update: impl FnOnce(&mut Came)) {
        let Some(slot) = self.slot(ticket.0) else { return };
        let mut slot = slot.lock();
        if slot.position() == Some(ticket.0) {
            update(&mut slot.came);
        }
    }

    /// Returns matching decisions before a position, newest first, and where the next page begins if there may be one.
    #[must_use]
    pub fn page(&self, filter: &Filter, before: Option<u64>, limit: usize) -> (Vec<Slot>, Option<u64>) {
        let next = self.next.load(Ordering::Relaxed);
        let first = next.saturating_sub(self.slots.len() as u64);
        let mut found = Vec::new();
        for position in (first..next.min(before.unwrap_or(u64::MAX))).rev() {
            let Some(slot) = self.slot(position) else { break };
            let slot = slot.lock();
            // Skips a slot that is being written or was reused.
            if slot.position() == Some(position) && filter.takes(&slot) {
                found.push(slot.clone());
                if found.len() >= limit {
                    return (found, (position > first).then_some(position));
                }
            }
        }
        (found, None)
    }
}

/// Turns that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningTurns {
    /// Number of turns.
    pub turns: usize,
    /// Number of turns that are late, or predicted to be late.
    pub predicted_late: usize,
}

impl Decisions {
    /// Counts the kept turns that have not ended.
    #[must_use]
    pub fn running(&self) -> RunningTurns {
        let mut running = RunningTurns::default();
        for slot in &self.slots {
            let slot = slot.lock();
            if slot.position().is_none() || slot.came.outcome.is_some() {
                continue;
            }
            running.turns += 1;
            running.predicted_late += usize::from(slot.is_predicted_late());
        }
        running
    }

    /// Returns up to `most` distinct ids of kept requests that begin with `prefix`, the newest first.
    #[must_use]
    pub fn requests_beginning_with(&self, prefix: &str, most: usize) -> Vec<String> {
        let next = self.next.load(Ordering::Relaxed);
        let first = next.saturating_sub(self.slots.len() as u64);
        let mut found: Vec<String> = Vec::new();
        for position in (first..next).rev() {
            let Some(slot) = self.slot(position) else { break };
            let slot = slot.lock();
            let request = slot.request.as_bytes();
            if slot.position() != Some(position)
                || !request.starts_with(prefix.as_bytes())
                || found.iter().any(|known| known.as_bytes() == request)
            {
                continue;
            }
            found.push(slot.request.text());
            if found.len() >= most {
                break;
            }
        }
        found
    }
}

impl Filter {
    fn takes(&self, slot: &Slot) -> bool {
        let is = |wanted: &Option<String>, has: &[u8]| {
            wanted.as_ref().is_none_or(|wanted| wanted.as_bytes() == has)
        };
        is(&self.request, slot.request.as_bytes())
            && is(&self.class, slot.class.as_bytes())
            && self.trace.is_none_or(|wanted| slot.trace == Some(wanted))
            && self.decision.is_none_or(|wanted| wanted == slot.sequence)
            && self.worker.is_none_or(|(at, joined)| {
                slot.arrived >= joined && slot.chosen().is_some_and(|row| row.worker == at)
            })
            && self.late.is_none_or(|wanted| wanted == slot.is_late())
            && self
                .finished
                .is_none_or(|wanted| wanted == slot.came.outcome.is_some())
            && self.cause.is_none_or(|wanted| slot.came.cause == Some(wanted))
            && self.from.is_none_or(|from| slot.began() >= from)
            && self.until.is_none_or(|until| slot.began() <= until)
    }
}

#[cfg(test)]
mod tests;
