//! The workers that a request may go to when a gateway proxies it to an address.

use std::net::SocketAddr;

use policy::ids::WorkerId;

use fleet::Worker;

/// A set of workers. Only workers with an address belong to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Among {
    /// Every worker with an address.
    Anybody,
    /// The workers at these addresses.
    Listed(Vec<SocketAddr>),
    /// One worker.
    One(WorkerId),
}

impl Among {
    /// Whether the set contains a worker.
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
