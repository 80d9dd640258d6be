//! Batches kept traces and exports them, off the request path.
//!
//! One task drains the queue, and the exporter retries a batch a few times. Traces that do not fit into the queue
//! meanwhile are dropped, so an outage costs at most the memory of the queue and one batch.
//!
//! Rejected: the SDK's `BatchSpanProcessor`, which drops single spans without reporting it, requires the request to
//! build finished spans, and exports from a thread without a runtime, where the router's HTTP client does not work.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::{TARGET, TraceMessage, TraceObserver, spans};

const BATCH: u64 = 128;
/// Maximum age of a batch.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Batcher<E> {
    queue: mpsc::Receiver<TraceMessage>,
    exporter: E,
    endpoint: String,
    counters: Arc<dyn TraceObserver>,
    is_out: bool,
}

#[derive(Default)]
struct SpanBatch {
    spans: Vec<SpanData>,
    traces: u64,
    flushes: Vec<oneshot::Sender<()>>,
}

impl SpanBatch {
    fn add(&mut self, message: TraceMessage) {
        match message {
            TraceMessage::Trace(kept) => {
                self.traces += 1;
                self.spans.extend(spans::of(&kept));
            }
            TraceMessage::Flush(done) => self.flushes.push(done),
        }
    }

    fn is_due(&self) -> bool {
        self.traces >= BATCH || !self.flushes.is_empty()
    }
}

impl<E: SpanExporter> Batcher<E> {
    pub(super) fn new(
        queue: mpsc::Receiver<TraceMessage>,
        exporter: E,
        endpoint: String,
        counters: Arc<dyn TraceObserver>,
    ) -> Self {
        Self {
            queue,
            exporter,
            endpoint,
            counters,
            is_out: false,
        }
    }

    pub(super) async fn run(&mut self) {
        while let Some(first) = self.queue.recv().await {
            let due = Instant::now() + PATIENCE;
            let mut batch = SpanBatch::default();
            batch.add(first);
            while !batch.is_due() {
                match timeout_at(due, self.queue.recv()).await {
                    Ok(Some(message)) => batch.add(message),
                    Ok(None) | Err(_) => break,
                }
            }
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: SpanBatch) {
        if batch.traces > 0 {
            let result = self.exporter.export(batch.spans).await;
            let was_out = std::mem::replace(&mut self.is_out, result.is_err());
            match result {
                Ok(()) => {
                    self.counters.sent(batch.traces);
                    if was_out {
                        info!(target: TARGET, "the collector accepts traces again");
                    }
                }
                Err(error) => {
                    self.counters.lost("export", batch.traces);
                    // Logged once per outage.
                    if !was_out {
                        warn!(
                            target: TARGET,
                            endpoint = self.endpoint,
                            %error,
                            "the collector does not accept traces: they are dropped until it does"
                        );
                    }
                }
            }
        }
        for done in batch.flushes {
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
    use parking_lot::Mutex;

    use super::super::record::{SpanRecord, Stage};
    use super::super::{KeepReason, KeptTrace};
    use super::*;
    use crate::context::Context;

    /// Spans per batch, and counts of traces.
    #[derive(Debug, Default)]
    struct Seen {
        batches: Mutex<Vec<usize>>,
        sent: Mutex<u64>,
        lost: Mutex<u64>,
        refuses: bool,
    }

    impl TraceObserver for Seen {
        fn kept(&self, _: &str) {}

        fn discarded(&self) {}

        fn lost(&self, why: &str, traces: u64) {
            assert_eq!(why, "export");
            *self.lost.lock() += traces;
        }

        fn sent(&self, traces: u64) {
            *self.sent.lock() += traces;
        }
    }

    #[derive(Debug)]
    struct Collector(Arc<Seen>);

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.batches.lock().push(batch.len());
            if self.0.refuses {
                return Err(OTelSdkError::InternalFailure("refused".to_owned()));
            }
            Ok(())
        }
    }

    fn trace() -> TraceMessage {
        let (id, now) = (HeaderValue::from_static("r"), std::time::Instant::now());
        let mut record = SpanRecord::new(Context::NONE, &id, now);
        record.stages.push((Stage::Parse, now, now));
        TraceMessage::Trace(Box::new(KeptTrace {
            record,
            reason: KeepReason::Share,
        }))
    }

    fn running(seen: &Arc<Seen>) -> mpsc::Sender<TraceMessage> {
        let (queue, outbox) = mpsc::channel(1000);
        let counters: Arc<dyn TraceObserver> = Arc::<Seen>::clone(seen);
        let mut batcher = Batcher::new(outbox, Collector(Arc::clone(seen)), "c".to_owned(), counters);
        tokio::spawn(async move { batcher.run().await });
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_goes_out_when_it_is_full_or_a_second_old() {
        let seen = Arc::new(Seen::default());
        let queue = running(&seen);
        for _ in 0..BATCH + 1 {
            queue.send(trace()).await.unwrap();
        }
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!(*seen.batches.lock(), [2 * BATCH as usize]);
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(*seen.batches.lock(), [2 * BATCH as usize, 2]);
        assert_eq!((*seen.sent.lock(), *seen.lost.lock()), (BATCH + 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_for_what_came_before_it_and_a_refusal_counts_traces() {
        let seen = Arc::new(Seen {
            refuses: true,
            ..Seen::default()
        });
        let queue = running(&seen);
        let (done, flushed) = oneshot::channel();
        for message in [trace(), trace(), TraceMessage::Flush(done)] {
            queue.send(message).await.unwrap();
        }
        let begun = Instant::now();
        flushed.await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(*seen.batches.lock(), [4]);
        assert_eq!((*seen.sent.lock(), *seen.lost.lock()), (0, 2));
    }
}
