//! Why turns went where they went: a ring of recent decisions, each with every term that led to it and what came of it.
//!
//! ```text
//! path/learn (an attempt goes out) ──▶ Decisions::record ──▶ a slot of the ring ──▶ admin: GET /admin/v1/decisions
//! path/account (first token, end) ───▶ Decisions::update ──────────┘
//! ```
//!
//! # Bounded
//! All slots are there from the start, as many as `explain.max_bytes` holds, and each is as large as any: a request's name,
//! a model's and a class's are cut, and of a large fleet the worker that was chosen and the [`ROWS`]` − 1` next ones are
//! kept, the rest in a few words ([`slot::Rest`]). The oldest decision makes room for the newest.
//!
//! # Off everybody's way
//! A decision takes the next number and the lock of that one slot, for as long as it takes to write some 600 bytes. Nobody
//! else wants that lock but the outcome of a turn a whole round ago, and somebody who reads the page.

mod slot;
pub mod view;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::route::Decision;
use policy::units::{Millis, Tokens};

pub use slot::{Came, ROWS, Rest, Row, Slot};
use telemetry::context::TraceId;

/// A decision to be recorded.
#[derive(Debug)]
pub struct Made<'a> {
    /// The request's name.
    pub request: &'a [u8],
    /// Its trace.
    pub trace: Option<TraceId>,
    /// The conversation's key.
    pub conversation: Option<u64>,
    /// The model that it asks for.
    pub model: &'a str,
    /// The class of its objective.
    pub class: &'a str,
    /// What it is to meet.
    pub objective: Millis,
    /// When it arrived.
    pub arrived: Millis,
    /// Since then, until it was sent.
    pub held: Millis,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// What its request asks for, as it was written.
    pub asked: &'a str,
    /// The decision.
    pub decision: &'a Decision,
}

/// Where a decision was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// What decisions are asked for. What is not said is not asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Of this request.
    pub request: Option<String>,
    /// Of this trace.
    pub trace: Option<TraceId>,
    /// The number that the answer carried.
    pub decision: Option<u64>,
    /// That chose the worker in this slot, since it joined.
    pub worker: Option<(u32, Millis)>,
    /// Whose objective is of this class.
    pub class: Option<String>,
    /// That missed their objective (or did not), of late or ever.
    pub late: Option<bool>,
    /// That missed it for this reason.
    pub cause: Option<policy::slo::Cause>,
}

/// The ring.
#[derive(Debug)]
pub struct Decisions {
    slots: Box<[Mutex<Slot>]>,
    next: AtomicU64,
}

impl Decisions {
    /// A ring that takes so many bytes; none, if one slot does not fit.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        let slots = max_bytes / size_of::<Mutex<Slot>>();
        Self {
            slots: (0..slots).map(|_| Mutex::new(Slot::EMPTY)).collect(),
            next: AtomicU64::new(0),
        }
    }

    /// Decisions that are kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, position: u64) -> Option<&Mutex<Slot>> {
        let count = self.slots.len() as u64;
        let at = position.checked_rem(count)?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// Records a decision.
    pub fn record(&self, made: &Made<'_>) -> Option<Ticket> {
        if self.slots.is_empty() {
            return None;
        }
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        self.slot(position)?.lock().write(position, made);
        Some(Ticket(position))
    }

    /// Something more is known of a decision, if it is still here.
    pub fn update(&self, ticket: Ticket, update: impl FnOnce(&mut Came)) {
        let Some(slot) = self.slot(ticket.0) else { return };
        let mut slot = slot.lock();
        if slot.position() == Some(ticket.0) {
            update(&mut slot.came);
        }
    }

    /// Decisions that match, the newest first, of those before a position; and the position to go on before, if there may
    /// be more.
    #[must_use]
    pub fn page(&self, filter: &Filter, before: Option<u64>, limit: usize) -> (Vec<Slot>, Option<u64>) {
        let next = self.next.load(Ordering::Relaxed);
        let first = next.saturating_sub(self.slots.len() as u64);
        let mut found = Vec::new();
        for position in (first..next.min(before.unwrap_or(u64::MAX))).rev() {
            let Some(slot) = self.slot(position) else { break };
            let slot = slot.lock();
            // One that is being written, or has made room by now, is passed over.
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
            && self.cause.is_none_or(|wanted| slot.came.cause == Some(wanted))
    }
}

#[cfg(test)]
mod tests;
