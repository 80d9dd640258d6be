//! Places for the connections of a port on which anybody may be silent.
//!
//! Their number is bounded, and a connection on which no request is under way has no right to its place: where all places
//! are taken, a new connection gets that of the one which has been idle for longest. So whoever opens connections and says
//! nothing keeps nobody out, and needs no time limit short enough to hurt others.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The places of a port.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    idle: Mutex<Idle>,
    became_idle: Notify,
}

/// Connections on which no request is under way, by when that began.
#[derive(Debug, Default)]
struct Idle {
    connections: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    places: Arc<Places>,
    must_close: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    /// Its number among the idle ones.
    idle_as: Option<u64>,
}

/// A request that is under way. While there is one, its connection keeps its place.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Connection>);

impl Places {
    /// So many places.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
            became_idle: Notify::new(),
        })
    }

    /// Waits for a place. Where all are taken, the connection that has been idle for longest is closed.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
                return Some(place);
            }
            let mut became_idle = pin!(self.became_idle.notified());
            became_idle.as_mut().enable();
            self.close_oldest();
            tokio::select! {
                biased;
                place = Arc::clone(&self.free).acquire_owned() => return place.ok(),
                () = became_idle => {}
            }
        }
    }

    /// A place, if one is free.
    pub(crate) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// A connection that has a place, idle so far.
    pub(crate) fn connection(self: &Arc<Self>) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            places: Arc::clone(self),
            must_close: Arc::new(Notify::new()),
            state: Mutex::default(),
        });
        connection.state.lock().idle_as = Some(self.enter(&connection.must_close));
        connection
    }

    fn close_oldest(&self) {
        let oldest = self.idle.lock().connections.pop_first();
        if let Some((_, must_close)) = oldest {
            must_close.notify_one();
        }
    }

    fn enter(&self, must_close: &Arc<Notify>) -> u64 {
        let mut idle = self.idle.lock();
        let number = idle.next;
        idle.next += 1;
        idle.connections.insert(number, Arc::clone(must_close));
        drop(idle);
        self.became_idle.notify_waiters();
        number
    }

    fn leave(&self, idle_as: Option<u64>) {
        if let Some(number) = idle_as {
            self.idle.lock().connections.remove(&number);
        }
    }

    /// Places that are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }
}

impl Connection {
    /// A request begins.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        let mut state = self.state.lock();
        state.under_way += 1;
        self.places.leave(state.idle_as.take());
        drop(state);
        UnderWay(Arc::clone(self))
    }

    /// Waits until the connection has to make room for another.
    pub(crate) async fn must_close(&self) {
        self.must_close.notified().await;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            state.idle_as = Some(self.0.places.enter(&self.0.must_close));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.places.leave(self.state.get_mut().idle_as);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Whether a connection has to close by now.
    fn must_close(connection: &Connection) -> bool {
        connection.must_close().now_or_never().is_some()
    }

    #[tokio::test]
    async fn the_connection_that_was_idle_for_longest_gives_its_place_to_a_new_one() {
        let places = Places::new(2);
        let first = (places.take().await, places.connection());
        let second = (places.take().await, places.connection());
        // It said something since, and is now the newer one.
        drop(first.1.begin());
        let waits = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await }
        });
        second.1.must_close().await;
        assert!(!must_close(&first.1));
        drop(second);
        assert!(waits.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_connection_with_a_request_under_way_keeps_its_place_until_that_is_over() {
        let places = Places::new(1);
        let (place, connection) = (places.take().await, places.connection());
        let requests = (connection.begin(), connection.begin());
        let mut waits = pin!(places.take());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(requests.0);
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(!must_close(&connection));
        drop(requests.1);
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(must_close(&connection));
        drop((place, connection));
        assert!(waits.await.is_some());
        assert!(places.idle.lock().connections.is_empty());
    }
}
