//! The state of a connection, shared by its reader, writer, requests and task.

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
pub struct Progress {
    began: Instant,
    any_request: AtomicBool,
    used: AtomicBool,
    http2: AtomicBool,
    unanswered: AtomicBool,
    unwritten: AtomicBool,
    upgraded: AtomicBool,
    /// Requests whose responses are incomplete.
    open: AtomicUsize,
    /// HTTP/1 requests that hyper has begun to serve.
    begun: AtomicU64,
    /// HTTP/1 requests that hyper has read completely.
    complete: AtomicU64,
    /// Whether hyper has read anything after the last complete request.
    has_more: AtomicBool,
    /// When the last open request ended, in milliseconds since `began`.
    idle_since_ms: AtomicU64,
    client_closed: AtomicBool,
    /// HTTP/2 header blocks begun, and whether the last one is unfinished.
    blocks_begun: AtomicU64,
    block_is_open: AtomicBool,
    refusal: OnceLock<ApiError>,
    reader: Mutex<Option<Waker>>,
    gives_way: Notify,
    is_evicted: AtomicBool,
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
            is_evicted: AtomicBool::default(),
        }
    }
}

/// An open request. Dropping it completes the response.
#[derive(Debug)]
pub struct OpenRequest(Arc<Progress>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let Progress { began, open, .. } = &*self.0;
        // Stored before the count, which readers check first.
        let idle_since = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_since_ms.store(idle_since, Ordering::Relaxed);
        open.fetch_sub(1, Ordering::AcqRel);
        self.0.wake_reader();
    }
}

impl Progress {
    /// Registers a request whose head is complete.
    pub fn request_began(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.any_request.store(true, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        OpenRequest(Arc::clone(self))
    }

    /// Records the number of complete HTTP/1 requests that hyper has read, and whether more bytes came after them.
    pub fn read_requests(&self, complete: u64, has_more: bool) {
        self.complete.store(complete, Ordering::Relaxed);
        self.has_more.store(has_more, Ordering::Relaxed);
    }

    /// Returns whether hyper has buffered bytes after an unanswered HTTP/1 request. It then reads no further.
    pub fn has_pipelined(&self) -> bool {
        let complete = self.complete.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        let holds_more = complete > begun || (complete == begun && self.has_more.load(Ordering::Relaxed));
        (holds_more || self.refusal().is_some()) && self.is_open() && !self.is_http2() && !self.is_upgraded()
    }

    /// Returns whether the head of any request was complete.
    pub fn any_request(&self) -> bool {
        self.any_request.load(Ordering::Relaxed)
    }

    /// Returns whether a request began since the last call.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a request is open.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Returns the time since the last request ended; `None` with an open request or a tunnel.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.is_open() || self.is_upgraded() {
            return None;
        }
        let since = Duration::from_millis(self.idle_since_ms.load(Ordering::Relaxed));
        Some(self.began.elapsed().saturating_sub(since))
    }

    /// Records that the connection uses HTTP/2, with its header blocks so far and whether the last one is unfinished.
    pub fn speaks_http2(&self, blocks_begun: u64, block_is_open: bool) {
        self.http2.store(true, Ordering::Relaxed);
        self.blocks_begun.store(blocks_begun, Ordering::Relaxed);
        self.block_is_open.store(block_is_open, Ordering::Relaxed);
    }

    /// Returns whether the connection is known to use HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Returns the number of the unfinished header block, if there is one.
    pub fn open_header_block(&self) -> Option<u64> {
        let is_open = self.block_is_open.load(Ordering::Relaxed);
        is_open.then(|| self.blocks_begun.load(Ordering::Relaxed))
    }

    /// Records the switch to another protocol.
    pub fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    /// Returns whether the connection has switched to another protocol.
    pub fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Records that bytes were received.
    pub fn received(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    /// Records that a response has begun.
    pub fn answered(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// Records whether the socket accepted all output.
    pub fn wrote(&self, all: bool) {
        self.unwritten.store(!all, Ordering::Relaxed);
        if all {
            self.wake_reader();
        }
    }

    /// Returns whether every request is answered and every response written.
    pub fn is_answered(&self) -> bool {
        !self.is_open() && !self.unwritten.load(Ordering::Relaxed)
    }

    /// Returns whether input came after the last output.
    pub fn has_partial_request(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Records that the client has closed its side.
    pub fn client_closed(&self) {
        self.client_closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the client has closed its side with a request open. Further work on the connection is useless.
    pub fn is_abandoned(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed) && self.is_open()
    }

    /// Stops reading permanently, with an error for the next request.
    pub fn refuse(&self, error: ApiError) {
        let _ = self.refusal.set(error);
    }

    /// Returns the error that the connection ends with, if any.
    pub fn refusal(&self) -> Option<&ApiError> {
        self.refusal.get()
    }

    /// Registers the waker for a complete or written response.
    pub fn wake_when_answered(&self, reader: &Waker) {
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

    /// Evicts the connection, to free its slot.
    pub fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        self.gives_way.notify_one();
    }

    /// Returns how long the connection has been idle; `None` if it is not idle, or is being evicted already.
    pub fn evictable_for(&self) -> Option<Duration> {
        self.idle_for()
            .filter(|_| !self.is_evicted.load(Ordering::Relaxed))
    }

    /// Waits for an eviction. A request that began in the meantime cancels it.
    pub async fn evicted(&self) {
        loop {
            self.gives_way.notified().await;
            if !self.is_open() {
                return;
            }
            self.is_evicted.store(false, Ordering::Relaxed);
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
    async fn a_new_request_cancels_the_eviction_of_its_connection() {
        let progress = Arc::new(Progress::default());
        progress.evict();
        let request = progress.request_began();
        assert!(progress.evicted().now_or_never().is_none());
        drop(request);
        assert!(progress.evictable_for().is_some(), "it can be told again");
        progress.evict();
        assert!(progress.evicted().now_or_never().is_some());
    }

    #[test]
    fn pipelined_bytes_are_distinguished_from_the_open_requests_body() {
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
    fn a_client_that_closed_its_side_abandons_its_open_requests() {
        let progress = Arc::new(Progress::default());
        progress.client_closed();
        assert!(!progress.is_abandoned());
        let request = progress.request_began();
        assert!(progress.is_abandoned());
        drop(request);
        assert!(!progress.is_abandoned());
    }
}
