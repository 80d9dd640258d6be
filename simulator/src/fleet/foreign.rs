//! Turns of other routers: the messages about them, and a router's account of them.

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
    /// The turn's first token has passed.
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
