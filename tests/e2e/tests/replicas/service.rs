//! What stands between replicas and their clients, as a Service does in a cluster: it knows which addresses are ready, and
//! hears late of one that is not any more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailroute_e2e::client;

/// Between two looks at a replica's readiness.
const PROBE: Duration = Duration::from_millis(200);
/// For everybody to hear that an endpoint is gone, once its readiness has turned.
const LATE: Duration = Duration::from_secs(1);

/// The endpoints that connections are given to, in turns, and how many each was given.
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
    /// Probes a replica for as long as it lives: an endpoint from when it is ready until a while after it is no longer.
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

    /// Where a new connection goes.
    pub(crate) fn pick(&self) -> SocketAddr {
        let endpoints = self.endpoints.lock();
        assert!(!endpoints.is_empty(), "no replica is ready");
        let picked = endpoints[self.next.fetch_add(1, Ordering::Relaxed) % endpoints.len()];
        *self.given.lock().entry(picked).or_default() += 1;
        picked
    }

    /// Connections that this address was given.
    pub(crate) fn given(&self, address: SocketAddr) -> u64 {
        self.given.lock().get(&address).copied().unwrap_or_default()
    }
}
