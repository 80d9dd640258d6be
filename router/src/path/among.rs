//! To whom a request may go, where somebody else carries it there: a gateway that was told an address.

use std::net::SocketAddr;

use policy::ids::WorkerId;

use fleet::Worker;

/// Some of the workers. Only what has an address can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Among {
    /// All that have an address.
    Anybody,
    /// Those at one of these addresses.
    Listed(Vec<SocketAddr>),
    /// Nobody but this one.
    One(WorkerId),
}

impl Among {
    /// Whether a worker is one of them.
    #[must_use]
    pub fn has(&self, worker: &Worker) -> bool {
        let Some(endpoint) = worker.endpoint else {
            return false;
        };
        match self {
            Self::Anybody => true,
            Self::Listed(listed) => listed.contains(&endpoint),
            Self::One(id) => worker.id == *id,
        }
    }
}
