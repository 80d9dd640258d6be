//! The workers that a request may go to when a gateway proxies it to an address.

use std::net::SocketAddr;

use policy::ids::WorkerId;

use fleet::Worker;

/// A set of workers. Every member has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Among {
    /// All workers with an address.
    Addressed,
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
            Self::Addressed => true,
            Self::Listed(listed) => listed.contains(&endpoint),
            Self::One(id) => worker.id == *id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Seat;

    #[tokio::test(start_paused = true)]
    async fn every_member_has_an_address() {
        let seat = Seat::with(|config| config.workers[2].url = "http://c.example:1".parse().unwrap());
        let address = |name: &str| seat.worker(name).endpoint.unwrap();
        for (among, members) in [
            (Among::Addressed, "ab"),
            (Among::Listed(vec![]), ""),
            (Among::Listed(vec![address("b")]), "b"),
            (Among::Listed(vec![address("b"), address("a")]), "ab"),
            (Among::Listed(vec!["10.0.0.1:1".parse().unwrap()]), ""),
            (Among::One(WorkerId(1)), "b"),
            (Among::One(WorkerId(2)), ""),
            (Among::One(WorkerId(9)), ""),
        ] {
            let has = ["a", "b", "c"]
                .iter()
                .filter(|name| among.has(&seat.worker(name)));
            assert_eq!(has.copied().collect::<String>(), members, "{among:?}");
        }
    }
}
