//! A load balancer between clients and replicas, like a Kubernetes Service: it tracks which addresses are ready, and
//! learns late of those that are not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailroute_e2e::client;

/// Interval of the readiness probes.
const PROBE: Duration = Duration::from_millis(200);
/// Delay until an unready endpoint is removed.
const LATE: Duration = Duration::from_secs(1);

/// The endpoints, used in turn, and the number of connections given to each.
#[derive(Debug, Default)]
pub(crate) struct Service {
    endpoints: Mutex<Vec<SocketAddr>>,
    given: Mutex<BTreeMap<SocketAddr, u64>>,
    next: AtomicUsize,
}

async fn is_ready(admin: SocketAddr) -> bool {
    client::open(admin, "GET", "/readyz", &[], "")
        .await
        .is_ok_and(|answer| answer.status == 200)
}

impl Service {
    /// Probes a replica for as long as it lives. It is an endpoint from its readiness until some time after the end
    /// of it.
    pub(crate) fn watch(self: &Arc<Self>, address: SocketAddr, admin: SocketAddr) {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            while !is_ready(admin).await {
                tokio::time::sleep(PROBE).await;
            }
            service.endpoints.lock().push(address);
            while is_ready(admin).await {
                tokio::time::sleep(PROBE).await;
            }
            tokio::time::sleep(LATE).await;
            service.endpoints.lock().retain(|endpoint| *endpoint != address);
        });
    }

    /// Returns the endpoint of a new connection.
    pub(crate) fn pick(&self) -> SocketAddr {
        let endpoints = self.endpoints.lock();
        assert!(!endpoints.is_empty(), "no replica is ready");
        let picked = endpoints[self.next.fetch_add(1, Ordering::Relaxed) % endpoints.len()];
        *self.given.lock().entry(picked).or_default() += 1;
        picked
    }

    /// Returns the number of connections given to this address.
    pub(crate) fn given(&self, address: SocketAddr) -> u64 {
        self.given.lock().get(&address).copied().unwrap_or_default()
    }
}
