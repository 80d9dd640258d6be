//! Turns of other routers: what routers say about them, and what a router counts for them.

use policy::estimate::Ticket;
use policy::residency::Reservation;
use policy::units::{Millis, Tokens};

#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Sent {
        worker: usize,
        prefill: Millis,
        key: f64,
    },
    /// Its first token passed.
    Begun,
    Answered {
        evict_first: Tokens,
    },
    Failed,
}

#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) worker: usize,
    pub(super) ticket: Option<Ticket>,
    pub(super) hold: Option<Reservation>,
}
