//! OpenTelemetry traces of requests, with one span per stage.
//!
//! A request carries a [`Trace`], in which each stage records its start and end under an uncontended lock. When the
//! last handle is dropped, the [`sampler`] decides whether to keep the trace. Kept records go into a bounded queue, and
//! those that do not fit are dropped and counted: requests never wait. One task converts records into the SDK's spans
//! ([`spans`]), batches them ([`batch`]) and exports them by `opentelemetry-otlp` ([`collector`]).
//!
//! Rejected: the SDK's tracer and `tracing-opentelemetry`, which allocate each span when it opens and sample at the
//! start; a `SpanProcessor`, which receives single spans; and sampling in a collector, which must hold all traces.

mod batch;
mod collector;
mod record;
mod sampler;
mod spans;
mod trace;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::HeaderMap;
use opentelemetry_otlp::SpanExporter;
use tokio::sync::{Mutex, mpsc, oneshot};
use tracing::warn;

use self::batch::Batcher;
pub use self::collector::ExporterError;
use self::record::SpanRecord;
pub use self::record::{
    AnswerFacts, AttemptTarget, ChoiceFacts, DescribeChoice, DescribeTurn, Stage, TraceUsage, TracedRoute,
    TurnFacts,
};
pub use self::sampler::KeepReason;
use self::sampler::{Shares, TailSampler};
use self::trace::Recording;
pub use self::trace::{AttemptSpan, StageSpan, Trace};
use crate::context::Context;

const TARGET: &str = "tailroute::telemetry";

/// Counts traces by outcome.
pub trait TraceObserver: std::fmt::Debug + Send + Sync {
    /// Counts a trace that is kept for this reason.
    fn kept(&self, why: &str);

    /// Counts a trace that is discarded.
    fn discarded(&self);

    /// Counts kept traces that were lost: `queue` (full) or `export` (failed).
    fn lost(&self, why: &str, traces: u64);

    /// Counts traces that the collector accepted.
    fn sent(&self, traces: u64);
}

#[derive(Debug)]
enum TraceMessage {
    Trace(Box<KeptTrace>),
    Flush(oneshot::Sender<()>),
}

#[derive(Debug)]
struct KeptTrace {
    record: SpanRecord,
    reason: KeepReason,
}

/// Receives traces when their requests end.
#[derive(Debug)]
pub struct Traces {
    sampler: TailSampler,
    queue: mpsc::Sender<TraceMessage>,
    /// Locked by the exporting task.
    batcher: Mutex<Batcher<SpanExporter>>,
    headers: Arc<ArcSwap<HeaderMap>>,
    counters: Arc<dyn TraceObserver>,
}

impl Traces {
    /// Creates the sampler and the exporter. gRPC requires a Tokio runtime. Fails if the collector uses TLS and no
    /// roots can verify it, or if the exporter rejects its settings.
    pub fn new(
        settings: &config::Traces,
        counters: Arc<dyn TraceObserver>,
    ) -> Result<Arc<Self>, ExporterError> {
        let (queue, outbox) = mpsc::channel(settings.queue.max(1));
        let shares = Shares {
            slowest: settings.slowest_share,
            rest: settings.share,
            asked: settings.keep_sampled,
        };
        let headers = Arc::new(ArcSwap::from_pointee(settings.headers.clone()));
        let exporter = collector::exporter(settings, Arc::clone(&headers))?;
        let endpoint = settings.endpoint.to_string();
        let batcher = Batcher::new(outbox, exporter, endpoint, Arc::clone(&counters));
        Ok(Arc::new(Self {
            sampler: TailSampler::new(shares),
            queue,
            batcher: Mutex::new(batcher),
            headers,
            counters,
        }))
    }

    /// Exports traces until the task is dropped. Only one such task runs at a time.
    pub async fn export(self: Arc<Self>) {
        self.batcher.lock().await.run().await;
    }

    /// Replaces the headers of exports, such as the collector's token.
    pub fn send_headers(&self, headers: &HeaderMap) {
        if *self.headers.load_full() != *headers {
            self.headers.store(Arc::new(headers.clone()));
        }
    }

    /// Returns whether a trace is selected by its id, and so kept regardless of its outcome.
    pub fn is_drawn(&self, trace: u128) -> bool {
        self.sampler.is_drawn(trace)
    }

    /// Begins the trace of a request that arrived at `at`.
    #[must_use]
    pub fn begin(self: &Arc<Self>, context: Context, request_id: &http::HeaderValue, at: Instant) -> Trace {
        let record = SpanRecord::new(context, request_id, at);
        Trace::new(Recording::new(Arc::clone(self), record))
    }

    fn ended(&self, record: &mut SpanRecord) {
        let Some(reason) = self.sampler.decide(record) else {
            self.counters.discarded();
            return;
        };
        let record = record.take();
        match self
            .queue
            .try_send(TraceMessage::Trace(Box::new(KeptTrace { record, reason })))
        {
            Ok(()) => self.counters.kept(reason.as_str()),
            Err(_) => self.counters.lost("queue", 1),
        }
    }

    /// Waits until all kept traces are sent or the time limit has passed.
    pub async fn flush(&self, limit: Duration) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.queue.send(TraceMessage::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        if tokio::time::timeout(limit, flushed).await.is_err() {
            warn!(target: TARGET, "the collector does not accept traces; the last ones are lost");
        }
    }
}
