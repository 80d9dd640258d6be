//! Sends what is kept to a collector, off every request's path.
//!
//! One task empties the queue in batches. A batch that the collector does not take is tried again a few times, with growing
//! pauses; meanwhile the queue fills, and what has no room in it is dropped. So an outage costs memory up to the queue's bound
//! and a batch, and no request anything.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use config::OtlpProtocol;
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message as _;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tracing::{info, warn};

use super::{Counters, Kept, Outbox, Parcel, TARGET, spans};
use tailroute_http::tls::{Connector, TlsError};

/// Traces that go out together.
const BATCH: usize = 128;
/// How long a batch may wait to be full.
const PATIENCE: Duration = Duration::from_millis(1000);
/// Times that a batch is sent.
const TRIES: u32 = 4;
/// The pause before the second of them; doubled each time.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest answer of a collector that is read.
const MAX_ANSWER_BYTES: usize = 1 << 16;

type Grpc = TraceServiceClient<Client<Connector, tonic::body::Body>>;

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("no answer in time")]
    Timeout,
    #[error("answered {0}")]
    Status(http::StatusCode),
    #[error("answered {}: {}", .0.code(), .0.message())]
    Grpc(Box<tonic::Status>),
    #[error("{0}")]
    Transport(String),
}

impl SendError {
    /// Whether the same batch may be taken a moment later (OTLP 1.x, "Failures"): what the collector refuses, it will refuse
    /// again.
    fn may_pass(&self) -> bool {
        use tonic::Code;
        match self {
            Self::Timeout | Self::Transport(_) => true,
            Self::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Grpc(status) => matches!(
                status.code(),
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
                    | Code::Unknown
            ),
        }
    }
}

/// A way to the collector.
enum Way {
    Grpc(Box<Grpc>),
    Http(Box<Client<Connector, Full<Bytes>>>, Uri),
}

impl Way {
    async fn send(&mut self, batch: ExportTraceServiceRequest, headers: &HeaderMap) -> Result<(), SendError> {
        match self {
            Self::Grpc(client) => {
                let mut request = tonic::Request::new(batch);
                *request.metadata_mut() = MetadataMap::from_headers(headers.clone());
                let sent = client.export(request).await;
                sent.map(drop).map_err(|status| SendError::Grpc(Box::new(status)))
            }
            Self::Http(client, uri) => {
                let transport = |error: &dyn std::fmt::Display| SendError::Transport(error.to_string());
                let mut request = Request::post(uri.clone())
                    .body(Full::new(Bytes::from(batch.encode_to_vec())))
                    .map_err(|error| transport(&error))?;
                request.headers_mut().clone_from(headers);
                let kind = HeaderValue::from_static("application/x-protobuf");
                request.headers_mut().insert(http::header::CONTENT_TYPE, kind);
                let answer = client.request(request).await.map_err(|error| transport(&error))?;
                let status = answer.status();
                // Read to its end, so that the connection can be used again.
                let _ = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
                if status.is_success() {
                    Ok(())
                } else {
                    Err(SendError::Status(status))
                }
            }
        }
    }
}

/// Sends what comes out of an outbox.
pub(super) struct Exporter {
    way: Way,
    settings: config::Traces,
    /// What the collector asks for, as it was last read.
    headers: Arc<ArcSwap<HeaderMap>>,
    counters: Arc<dyn Counters>,
    /// The last batch was not taken.
    is_out: bool,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Exporter {
    /// An exporter by these settings.
    ///
    /// # Errors
    /// If the collector is to be spoken to by TLS, and there are no roots to verify it by.
    pub(super) fn new(
        settings: &config::Traces,
        headers: Arc<ArcSwap<HeaderMap>>,
        counters: Arc<dyn Counters>,
    ) -> Result<Self, TlsError> {
        let is_grpc = settings.protocol == OtlpProtocol::Grpc;
        let connector =
            tailroute_http::tls::towards_collector(HttpConnector::new(), settings, settings.timeout)?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).http2_only(is_grpc);
        let way = if is_grpc {
            let client = TraceServiceClient::with_origin(builder.build(connector), settings.endpoint.clone());
            Way::Grpc(Box::new(client))
        } else {
            let base = settings.endpoint.to_string();
            let uri = format!("{}/v1/traces", base.trim_end_matches('/'));
            // A base url that was checked, and a path: always a url.
            Way::Http(
                Box::new(builder.build(connector)),
                uri.parse().unwrap_or_default(),
            )
        };
        Ok(Self {
            way,
            settings: settings.clone(),
            headers,
            counters,
            is_out: false,
        })
    }

    /// Sends what comes, until nothing can come any more.
    pub(super) async fn run(&mut self, Outbox(outbox): &mut Outbox) {
        let mut batch: Vec<Kept> = Vec::with_capacity(BATCH);
        let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
        let mut due = None;
        loop {
            let next = match due {
                Some(due) => tokio::time::timeout_at(due, outbox.recv()).await.ok(),
                None => Some(outbox.recv().await),
            };
            let is_over = matches!(next, Some(None));
            let mut is_due = next.is_none() || is_over;
            match next.flatten() {
                Some(Parcel::Trace(kept)) => {
                    due.get_or_insert_with(|| Instant::now() + PATIENCE);
                    batch.push(*kept);
                    is_due |= batch.len() >= BATCH;
                }
                Some(Parcel::Flush(done)) => {
                    waiting.push(done);
                    is_due = true;
                }
                None => {}
            }
            if is_due {
                self.send(&mut batch).await;
                due = None;
                for done in waiting.drain(..) {
                    let _ = done.send(());
                }
            }
            if is_over {
                return;
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<Kept>) {
        if batch.is_empty() {
            return;
        }
        let traces = batch.len() as u64;
        let mut pause = PAUSE;
        let mut tried = 0;
        let error = loop {
            tried += 1;
            // Made for each try: a copy to keep costs as much as the first one, and hardly any batch needs a second.
            let message = ExportTraceServiceRequest {
                resource_spans: vec![spans::message(&self.settings.service_name, batch)],
            };
            let headers = self.headers.load_full();
            let sent = tokio::time::timeout(self.settings.timeout, self.way.send(message, &headers)).await;
            match sent.unwrap_or(Err(SendError::Timeout)) {
                Ok(()) => {
                    if std::mem::take(&mut self.is_out) {
                        info!(target: TARGET, "the collector takes traces again");
                    }
                    self.counters.sent(traces);
                    batch.clear();
                    return;
                }
                Err(error) if error.may_pass() && tried < TRIES => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => break error,
            }
        };
        batch.clear();
        self.counters.lost("export", traces);
        // Once for each outage: it may be long.
        if !std::mem::replace(&mut self.is_out, true) {
            warn!(target: TARGET, endpoint = %self.settings.endpoint, %error, "the collector does not take traces: they are dropped until it does");
        }
    }
}
