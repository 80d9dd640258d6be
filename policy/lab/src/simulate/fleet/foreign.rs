//! Turns of other routers: what routers say about them, and what a router counts for them.

use policy::estimate::Ticket;
use policy::residency::Reservation;
use policy::units::{Millis, Tokens};

/// A router's message about one of its turns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// The turn was sent to a worker.
    Sent {
        worker: usize,
        prefill: Millis,
        key: f64,
    },
    /// Its first token passed.
    Begun,
    /// Its response is complete.
    Answered { evict_first: Tokens },
    /// Its worker died.
    Failed,
}

/// A turn of another router, as this one counts it.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) worker: usize,
    pub(super) ticket: Option<Ticket>,
    pub(super) hold: Option<Reservation>,
}
