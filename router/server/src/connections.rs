//! A port's connection limit, and the eviction of idle connections at the limit (`docs/http.md`, section Connections).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::progress::Progress;

/// Polling interval for idle connections while a new one waits.
const LOOK: Duration = Duration::from_millis(20);
/// Inverse of the share of the limit that is evicted at a time: the search for idle connections takes time in
/// proportion to their number.
const SHARE: usize = 64;

/// Open connections of a port, and their limit.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    permits: Arc<Semaphore>,
    open: Mutex<HashMap<u64, OpenConnection>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct OpenConnection {
    network: IpAddr,
    progress: Arc<Progress>,
}

/// Permit of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    number: u64,
    progress: Arc<Progress>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    /// Returns the state of the connection, from which its idleness is known.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
    }
}

impl Connections {
    /// Creates a limit of `max` connections.
    pub fn new(max: usize) -> Arc<Self> {
        let max = max.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            max,
            permits: Arc::new(Semaphore::new(max)),
            open: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Waits for a permit for a client's connection.
    pub async fn acquire(self: &Arc<Self>, client: IpAddr) -> ConnectionPermit {
        // The connection counts as idle from here on, while it waits too.
        let progress = Arc::new(Progress::default());
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return self.opened(client, progress, permit);
            }
            self.make_room();
            let freed = Arc::clone(&self.permits).acquire_owned();
            if let Ok(Ok(permit)) = tokio::time::timeout(LOOK, freed).await {
                return self.opened(client, progress, permit);
            }
        }
    }

    /// Returns a permit for a client's connection if one is free.
    pub fn try_acquire(self: &Arc<Self>, client: IpAddr) -> Option<ConnectionPermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(self.opened(client, Arc::default(), permit))
    }

    fn opened(
        self: &Arc<Self>,
        client: IpAddr,
        progress: Arc<Progress>,
        permit: OwnedSemaphorePermit,
    ) -> ConnectionPermit {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let open = OpenConnection {
            network: network(client),
            progress: Arc::clone(&progress),
        };
        self.open.lock().insert(number, open);
        ConnectionPermit {
            connections: Arc::clone(self),
            number,
            progress,
            _permit: permit,
        }
    }

    /// Returns the number of free permits.
    pub fn free(&self) -> usize {
        self.permits.available_permits()
    }

    /// Evicts some of the idle connections of the network that has most of them, longest idle first.
    fn make_room(&self) {
        let open = self.open.lock();
        let mut idle: HashMap<IpAddr, Vec<(Duration, &Arc<Progress>)>> = HashMap::new();
        for OpenConnection { network, progress } in open.values() {
            if let Some(idle_for) = progress.evictable_for() {
                idle.entry(*network).or_default().push((idle_for, progress));
            }
        }
        let Some(mut most) = idle.into_values().max_by_key(Vec::len) else {
            return;
        };
        most.sort_unstable_by_key(|(idle_for, _)| std::cmp::Reverse(*idle_for));
        for (_, progress) in most.iter().take(self.max.div_ceil(SHARE)) {
            progress.evict();
        }
    }
}

/// Returns the network that counts as one client: an IPv4 address, or an IPv6 /64.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    async fn open(
        connections: &Arc<Connections>,
        client: IpAddr,
    ) -> (Arc<Progress>, tokio::task::JoinHandle<()>) {
        let permit = connections.acquire(client).await;
        let progress = Arc::clone(permit.progress());
        let task = tokio::spawn(async move {
            permit.progress().evicted().await;
            drop(permit);
        });
        (progress, task)
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_longest_idle_connection_of_the_busiest_address_is_evicted() {
        let connections = Connections::new(4);
        let mut all = Vec::new();
        for client in [1, 2, 2, 2] {
            all.push(open(&connections, address(client)).await);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let _request = all[1].0.request_began();
        let _new = open(&connections, address(3)).await;
        let ended: Vec<bool> = all.iter().map(|(_, task)| task.is_finished()).collect();
        assert_eq!(ended, [false, false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_client_waits_while_every_connection_has_a_request_open() {
        let connections = Connections::new(1);
        let (progress, _task) = open(&connections, address(1)).await;
        let request = progress.request_began();
        let mut waiting = std::pin::pin!(connections.acquire(address(2)));
        let in_time = tokio::time::timeout(Duration::from_secs(60), waiting.as_mut()).await;
        assert!(in_time.is_err());
        drop(request);
        waiting.await;
        assert!(connections.try_acquire(address(2)).is_some());
    }

    #[test]
    fn a_connection_under_eviction_is_not_chosen_again() {
        let connections = Connections::new(2);
        let open = [(); 2].map(|()| connections.try_acquire(address(1)).unwrap());
        let told = || {
            let told = |permit: &ConnectionPermit| permit.progress().evicted().now_or_never().is_some();
            open.iter().filter(|one| told(one)).count()
        };
        for expected in [1, 1, 0] {
            connections.make_room();
            assert_eq!(told(), expected);
        }
    }

    #[test]
    fn an_ipv6_network_counts_as_one_client() {
        let network = |text: &str| super::network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), address(1));
    }

    #[test]
    fn dropping_a_permit_frees_its_slot() {
        let connections = Connections::new(1);
        let permit = connections.try_acquire(address(1)).unwrap();
        assert!(connections.try_acquire(address(1)).is_none());
        drop(permit);
        assert!(connections.acquire(address(1)).now_or_never().is_some());
    }
}
