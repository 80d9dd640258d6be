//! State of a connection, shared by its reader, writer, requests and task.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use protocol::error::ApiError;

/// State of one connection.
#[derive(Debug, Default)]
pub struct Progress {
    began: Began,
    used: AtomicBool,
    http2: AtomicBool,
    upgraded: AtomicBool,
    /// Number of requests whose responses are incomplete.
    open: AtomicUsize,
    /// Number of requests that hyper has begun to serve.
    begun: AtomicU64,
    /// Number of HTTP/1 requests that hyper has read completely.
    complete: AtomicU64,
    /// Whether hyper has read anything after the last complete request.
    has_more: AtomicBool,
    /// Time at which the last request ended, in milliseconds since `began`.
    idle_since_ms: AtomicU64,
    client_closed: AtomicBool,
    /// Number of the unfinished head or header block, plus one; 0 without one.
    head: AtomicU64,
    /// Time of the first byte of that head, in milliseconds since `began`.
    head_since_ms: AtomicU64,
    head_begins: Notify,
    refusal: OnceLock<ApiError>,
    reader: Mutex<Option<Waker>>,
    gives_way: Notify,
    is_evicted: AtomicBool,
}

#[derive(Debug)]
struct Began(Instant);

impl Default for Began {
    fn default() -> Self {
        Self(Instant::now())
    }
}

/// An open request. Dropping it marks its response as complete.
#[derive(Debug)]
pub struct OpenRequest(Arc<Progress>);

impl OpenRequest {
    pub(super) fn connection(&self) -> &Progress {
        &self.0
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // Stored before the count, which readers check first.
        self.0.idle_since_ms.store(self.0.now_ms(), Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.wake_reader();
    }
}

impl Progress {
    /// Registers a request whose head is complete.
    pub fn request_began(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::Relaxed);
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

    /// Returns whether a request began since the last call.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a request is open.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Returns the time since the last request ended, or since the connection began; `None` with an open request or a
    /// tunnel.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.is_open() || self.is_upgraded() {
            return None;
        }
        Some(self.since(self.idle_since_ms.load(Ordering::Relaxed)))
    }

    /// Records that the connection uses HTTP/2.
    pub fn speaks_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// Records the number of the unfinished head or HTTP/2 header block, if there is one.
    pub fn reads_head(&self, number: Option<u64>) {
        let head = number.map_or(0, |number| number + 1);
        if self.head.swap(head, Ordering::Relaxed) != head && head > 0 {
            self.head_since_ms.store(self.now_ms(), Ordering::Relaxed);
            self.head_begins.notify_one();
        }
    }

    /// Waits until a head has begun that is unfinished.
    pub async fn head_begins(&self) {
        self.head_begins.notified().await;
    }

    /// Returns whether a head is unfinished.
    pub fn has_open_head(&self) -> bool {
        self.head.load(Ordering::Relaxed) > 0
    }

    /// Returns how long the client has been sending an unfinished head; `None` without one, or behind a pipelined
    /// request, whose response the client may wait for.
    pub fn head_open_for(&self) -> Option<Duration> {
        if !self.has_open_head() || self.is_upgraded() {
            return None;
        }
        let begun = self.head_since_ms.load(Ordering::Relaxed);
        if self.is_http2() {
            return Some(self.since(begun));
        }
        let idle_since = self.idle_since_ms.load(Ordering::Relaxed);
        (!self.is_open()).then(|| self.since(begun.max(idle_since)))
    }

    /// Returns whether the connection is known to use HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Records the switch to another protocol.
    pub fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    /// Returns whether the connection has switched to another protocol.
    pub fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Records that the client has closed its side.
    pub fn on_client_closed(&self) {
        self.client_closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the client has closed its side.
    pub fn is_client_closed(&self) -> bool {
        self.client_closed.load(Ordering::Relaxed)
    }

    /// Returns whether the client has closed its side with a request open. Further work on the connection is useless.
    pub fn is_abandoned(&self) -> bool {
        self.is_client_closed() && self.is_open()
    }

    /// Records the error that the connection ends with, after which nothing more is read. Only the first one counts.
    pub fn refuse(&self, error: ApiError) {
        let _ = self.refusal.set(error);
    }

    /// Returns the error that the connection ends with, if any.
    pub fn refusal(&self) -> Option<&ApiError> {
        self.refusal.get()
    }

    /// Registers a waker for when a response is complete or all output is written, once an error was recorded.
    pub fn wake_when_answered(&self, reader: &Waker) {
        *self.reader.lock() = Some(reader.clone());
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn since(&self, at_ms: u64) -> Duration {
        self.began
            .0
            .elapsed()
            .saturating_sub(Duration::from_millis(at_ms))
    }

    /// Wakes the reader that waits for the end of the responses, once an error was recorded.
    pub(super) fn wake_reader(&self) {
        if self.refusal.get().is_some() {
            let reader = self.reader.lock().take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }

    /// Requests the eviction of the connection, to free its slot.
    pub fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        self.gives_way.notify_one();
    }

    /// Returns how long the connection has been idle; `None` if it is not idle, or is being evicted already.
    pub fn evictable_for(&self) -> Option<Duration> {
        self.idle_for()
            .filter(|_| !self.is_evicted.load(Ordering::Relaxed))
    }

    /// Waits until the connection is evicted. A request that began in the meantime cancels the eviction.
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

    #[tokio::test(start_paused = true)]
    async fn a_heads_clock_starts_with_its_first_byte_and_after_earlier_responses() {
        let progress = Arc::new(Progress::default());
        let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        after(60).await;
        assert_eq!(progress.head_open_for(), None, "no byte has come");
        progress.reads_head(Some(0));
        assert!(progress.head_begins().now_or_never().is_some());
        after(3).await;
        progress.reads_head(Some(0));
        assert_eq!(
            progress.head_open_for(),
            seconds(3),
            "more bytes do not extend it"
        );
        assert!(progress.head_begins().now_or_never().is_none());
        progress.reads_head(None);
        let request = progress.request_began();
        progress.reads_head(Some(1));
        after(30).await;
        assert_eq!(progress.head_open_for(), None, "an earlier request is open");
        drop(request);
        after(2).await;
        assert_eq!(progress.head_open_for(), seconds(2));
        progress.reads_head(Some(2));
        assert_eq!(progress.head_open_for(), seconds(0), "another head");
        progress.speaks_http2();
        let _request = progress.request_began();
        after(4).await;
        assert_eq!(
            progress.head_open_for(),
            seconds(4),
            "a header block beside a stream"
        );
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
        progress.on_client_closed();
        assert!(!progress.is_abandoned());
        let request = progress.request_began();
        assert!(progress.is_abandoned());
        drop(request);
        assert!(!progress.is_abandoned());
    }
}
