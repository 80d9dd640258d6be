//! The workers that a request may go to when a gateway proxies it to an address.

use std::net::SocketAddr;

use policy::ids::WorkerId;

use fleet::Worker;

/// A set of workers. Every member has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Among {
    /// All workers with an address.
    Anybody,
    /// The workers at these addresses.
    Listed(Vec<SocketAddr>),
    /// One worker.
    One(WorkerId),
}

impl Among {
    /// Returns whether the set contains a worker.
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
