//! Traces: what happened to a request, stage by stage, as OpenTelemetry has it.
//!
//! A request carries a [`Trace`], into which each stage writes when it began and ended: a few numbers behind a lock without
//! contention. When the last handle of the trace is dropped, everything is known, and [`sampler`] decides whether it is worth
//! sending: errors, missed objectives, the slowest, those that a client asked to be recorded, and a share of the rest. A kept
//! record goes into a bounded queue. Behind the queue one task makes the SDK's spans of it ([`spans`]), collects them into
//! batches ([`batch`]) and exports them by `opentelemetry-otlp` ([`collector`]). A request never waits for it; what has no room
//! is dropped and counted.
//!
//! So deciding at the end costs no memory beyond the request's own, and what is not kept costs next to nothing. Rejected: the
//! SDK's tracer, and `tracing-opentelemetry` on top of it, which allocate every span as it opens and have the sampler decide at
//! the beginning; a `SpanProcessor` that decides at the end, since it is told of spans that were made already, one by one; and
//! a collector's tail sampling, which has to be sent all traces and to hold them until some time has passed.

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
    AnswerFacts, ChoiceFacts, DescribeChoice, DescribeTurn, Stage, Target, TurnFacts, Usage,
};
pub use self::sampler::KeepReason;
use self::sampler::{Shares, TailSampler};
use self::trace::Recording;
pub use self::trace::{AttemptSpan, Note, StageSpan, Trace};
use crate::context::Context;

/// The target of this module's lines in the log: filters such as `tailroute=debug` apply to them.
const TARGET: &str = "tailroute::telemetry";

/// Counts what becomes of traces.
pub trait Counters: std::fmt::Debug + Send + Sync {
    /// A request's trace has ended, and is kept for this reason.
    fn kept(&self, why: &str);

    /// A request's trace has ended, and is not kept.
    fn discarded(&self);

    /// So many were kept and are lost: to a full `queue`, or in `export`.
    fn lost(&self, why: &str, traces: u64);

    /// The collector has taken so many.
    fn sent(&self, traces: u64);
}

/// What goes to the task that sends.
#[derive(Debug)]
enum Message {
    Trace(Box<KeptTrace>),
    /// Say so when all before it is sent.
    Flush(oneshot::Sender<()>),
}

/// A trace to be sent.
#[derive(Debug)]
struct KeptTrace {
    record: SpanRecord,
    reason: KeepReason,
}

/// Receives the traces of requests when they end.
#[derive(Debug)]
pub struct Traces {
    sampler: TailSampler,
    queue: mpsc::Sender<Message>,
    /// Held by the task that sends.
    batcher: Mutex<Batcher<SpanExporter>>,
    headers: Arc<ArcSwap<HeaderMap>>,
    counters: Arc<dyn Counters>,
}

impl Traces {
    /// Traces by these settings. Called in a Tokio runtime: gRPC's connections have tasks there.
    ///
    /// # Errors
    /// If the collector is to be spoken to by TLS, and there are no roots to verify it by.
    pub fn new(settings: &config::Traces, counters: Arc<dyn Counters>) -> Result<Arc<Self>, ExporterError> {
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

    /// Sends them, for as long as the task lives. There is one such task at a time.
    pub async fn export(self: Arc<Self>) {
        self.batcher.lock().await.run().await;
    }

    /// Sends these headers from now on: the collector's token may have changed.
    pub fn send_headers(&self, headers: &HeaderMap) {
        if *self.headers.load_full() != *headers {
            self.headers.store(Arc::new(headers.clone()));
        }
    }

    /// Whether a trace that begins here is among those that are kept whatever comes: so that workers can be told.
    #[must_use]
    pub fn is_drawn(&self, trace: u128) -> bool {
        self.sampler.is_drawn(trace)
    }

    /// A request has begun then, a moment ago.
    #[must_use]
    pub fn begin(self: &Arc<Self>, context: Context, request_id: &http::HeaderValue, at: Instant) -> Trace {
        let record = SpanRecord::new(context, request_id, at);
        Trace::new(Recording::new(Arc::clone(self), record))
    }

    /// All of a request is over.
    fn ended(&self, record: &mut SpanRecord) {
        let Some(reason) = self.sampler.decide(record) else {
            self.counters.discarded();
            return;
        };
        let record = record.take();
        match self
            .queue
            .try_send(Message::Trace(Box::new(KeptTrace { record, reason })))
        {
            Ok(()) => self.counters.kept(reason.as_str()),
            Err(_) => self.counters.lost("queue", 1),
        }
    }

    /// Waits until what is kept by now has been sent, or the time is up.
    pub async fn flush(&self, limit: Duration) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        if tokio::time::timeout(limit, flushed).await.is_err() {
            warn!(target: TARGET, "the collector does not accept traces; the last ones are lost");
        }
    }
}
