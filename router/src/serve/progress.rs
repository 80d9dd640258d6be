//! How far a connection has come: what its reader, its writer, its requests and its task tell each other.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use protocol::error::ApiError;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    any_request: AtomicBool,
    used: AtomicBool,
    http2: AtomicBool,
    unanswered: AtomicBool,
    /// Something of an answer waits for the socket.
    unwritten: AtomicBool,
    upgraded: AtomicBool,
    /// Requests whose answers are not complete.
    open: AtomicUsize,
    /// Requests of HTTP/1 that hyper has begun to serve.
    begun: AtomicU64,
    /// Requests of HTTP/1 that hyper has read to their end.
    complete: AtomicU64,
    /// Whether hyper has read anything after the last complete request.
    has_more: AtomicBool,
    /// When the last of them was complete, in milliseconds since `began`.
    idle_since_ms: AtomicU64,
    client_closed: AtomicBool,
    /// HTTP/2 header blocks that have begun, and whether the last one has ended.
    blocks_begun: AtomicU64,
    block_is_open: AtomicBool,
    /// Why the reader has stopped for good.
    refusal: OnceLock<ApiError>,
    /// The reader, while it waits for answers to be complete and written.
    reader: Mutex<Option<Waker>>,
    gives_way: Notify,
    /// It was told to give way, and has not answered yet.
    is_giving_way: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            any_request: AtomicBool::default(),
            used: AtomicBool::default(),
            http2: AtomicBool::default(),
            unanswered: AtomicBool::default(),
            unwritten: AtomicBool::default(),
            upgraded: AtomicBool::default(),
            open: AtomicUsize::default(),
            begun: AtomicU64::default(),
            complete: AtomicU64::default(),
            has_more: AtomicBool::default(),
            idle_since_ms: AtomicU64::default(),
            client_closed: AtomicBool::default(),
            blocks_begun: AtomicU64::default(),
            block_is_open: AtomicBool::default(),
            refusal: OnceLock::default(),
            reader: Mutex::default(),
            gives_way: Notify::default(),
            is_giving_way: AtomicBool::default(),
        }
    }
}

/// A request whose answer is not complete. Dropping it completes the answer.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Progress>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let Progress { began, open, .. } = &*self.0;
        // Before the count, which is what readers of the time look at first.
        let idle_since = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_since_ms.store(idle_since, Ordering::Relaxed);
        open.fetch_sub(1, Ordering::AcqRel);
        self.0.wake_reader();
    }
}

impl Progress {
    /// A request's head was read to its end.
    pub(crate) fn request_began(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.any_request.store(true, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        OpenRequest(Arc::clone(self))
    }

    /// hyper has read so many complete requests of HTTP/1, and more bytes after them or none.
    pub(crate) fn read_requests(&self, complete: u64, has_more: bool) {
        self.complete.store(complete, Ordering::Relaxed);
        self.has_more.store(has_more, Ordering::Relaxed);
    }

    /// Whether hyper holds bytes behind a request of HTTP/1 that is not answered. It reads no further then.
    pub(crate) fn has_pipelined(&self) -> bool {
        let complete = self.complete.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        let holds_more = complete > begun || (complete == begun && self.has_more.load(Ordering::Relaxed));
        (holds_more || self.refusal().is_some()) && self.is_open() && !self.is_http2() && !self.is_upgraded()
    }

    /// Whether any request was read to the end of its head.
    pub(crate) fn any_request(&self) -> bool {
        self.any_request.load(Ordering::Relaxed)
    }

    /// Whether a request began since this was asked last.
    pub(crate) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Whether any request is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// For how long no request has been open; `None` while one is, and for a tunnel.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        if self.is_open() || self.is_upgraded() {
            return None;
        }
        let since = Duration::from_millis(self.idle_since_ms.load(Ordering::Relaxed));
        Some(self.began.elapsed().saturating_sub(since))
    }

    /// The connection speaks HTTP/2. So many header blocks have begun on it, and the last one is unfinished or is not.
    pub(crate) fn speaks_http2(&self, blocks_begun: u64, block_is_open: bool) {
        self.http2.store(true, Ordering::Relaxed);
        self.blocks_begun.store(blocks_begun, Ordering::Relaxed);
        self.block_is_open.store(block_is_open, Ordering::Relaxed);
    }

    /// Whether the connection is known to speak HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// The number of the header block that has begun and not ended, if any.
    pub(crate) fn open_header_block(&self) -> Option<u64> {
        let is_open = self.block_is_open.load(Ordering::Relaxed);
        is_open.then(|| self.blocks_begun.load(Ordering::Relaxed))
    }

    /// The connection speaks another protocol from here on.
    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Bytes came in.
    pub(crate) fn received(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    /// Bytes of an answer went out.
    pub(crate) fn answered(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// The socket took all that was to be written, or did not.
    pub(crate) fn wrote(&self, all: bool) {
        self.unwritten.store(!all, Ordering::Relaxed);
        if all {
            self.wake_reader();
        }
    }

    /// Whether every request is answered, and every answer written.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_open() && !self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether bytes came in after the last answer went out.
    pub(crate) fn half_a_request(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// The client has closed its side.
    pub(crate) fn client_closed(&self) {
        self.client_closed.store(true, Ordering::Relaxed);
    }

    /// Whether the client has closed its side with a request open: nothing on this connection is worth going on with.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed) && self.is_open()
    }

    /// Nothing more is read: the next request cannot be.
    pub(crate) fn refuse(&self, error: ApiError) {
        let _ = self.refusal.set(error);
    }

    /// Why nothing more is read, if that is so.
    pub(crate) fn refusal(&self) -> Option<&ApiError> {
        self.refusal.get()
    }

    /// Wakes this task when an answer is complete or has been written.
    pub(crate) fn wake_when_answered(&self, reader: &Waker) {
        *self.reader.lock() = Some(reader.clone());
    }

    fn wake_reader(&self) {
        if self.refusal.get().is_some() {
            let reader = self.reader.lock().take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }

    /// Ends the connection, so that a new one can have its place.
    pub(crate) fn give_way(&self) {
        self.is_giving_way.store(true, Ordering::Relaxed);
        self.gives_way.notify_one();
    }

    /// For how long it has been idle; `None` if it is not idle, or was told to give way already.
    pub(crate) fn could_give_way(&self) -> Option<Duration> {
        self.idle_for()
            .filter(|_| !self.is_giving_way.load(Ordering::Relaxed))
    }

    /// Waits until the connection has to give way. A request that began meanwhile keeps it.
    pub(crate) async fn has_to_give_way(&self) {
        loop {
            self.gives_way.notified().await;
            if !self.is_open() {
                return;
            }
            self.is_giving_way.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_last_request() {
        let progress = Arc::new(Progress::default());
        let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        after(3).await;
        assert_eq!(
            progress.idle_for(),
            Some(Duration::from_secs(3)),
            "from its beginning"
        );
        let requests = [progress.request_began(), progress.request_began()];
        assert_eq!(progress.idle_for(), None);
        let [first, second] = requests;
        drop(first);
        assert_eq!(progress.idle_for(), None, "another is open");
        after(4).await;
        drop(second);
        after(5).await;
        assert_eq!(progress.idle_for(), Some(Duration::from_secs(5)));
        progress.upgrade();
        assert_eq!(progress.idle_for(), None, "a tunnel is never idle");
    }

    #[tokio::test]
    async fn a_request_that_began_meanwhile_keeps_a_connection_that_was_told_to_give_way() {
        let progress = Arc::new(Progress::default());
        progress.give_way();
        let request = progress.request_began();
        assert!(progress.has_to_give_way().now_or_never().is_none());
        drop(request);
        assert!(progress.could_give_way().is_some(), "it can be told again");
        progress.give_way();
        assert!(progress.has_to_give_way().now_or_never().is_some());
    }

    #[test]
    fn what_is_pipelined_is_told_from_the_rest_of_the_open_request() {
        let progress = Arc::new(Progress::default());
        let _request = progress.request_began();
        for (complete, has_more, has_pipelined) in [
            (0, true, false),
            (1, false, false),
            (1, true, true),
            (2, false, true),
        ] {
            progress.read_requests(complete, has_more);
            assert_eq!(progress.has_pipelined(), has_pipelined, "{complete} {has_more}");
        }
        progress.upgrade();
        assert!(!progress.has_pipelined());
    }

    #[test]
    fn a_client_that_has_closed_its_side_abandons_what_is_open() {
        let progress = Arc::new(Progress::default());
        progress.client_closed();
        assert!(!progress.is_abandoned());
        let request = progress.request_began();
        assert!(progress.is_abandoned());
        drop(request);
        assert!(!progress.is_abandoned());
    }
}
