//! A collector that receives OTLP over gRPC, decodes it and counts traces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use tokio::task::JoinHandle;

/// The number of root spans received.
#[derive(Clone, Debug, Default)]
struct Count(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for Count {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let scopes = request.get_ref().resource_spans.iter();
        let spans = scopes
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| &scope.spans);
        let traces = spans.filter(|span| span.kind == SpanKind::Server as i32).count();
        self.0.fetch_add(traces as u64, Ordering::Relaxed);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A running collector. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Collector {
    address: SocketAddr,
    count: Count,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    /// Starts a collector on a free port.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let count = Count::default();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(count.clone()));
        let connections = tonic::transport::server::TcpIncoming::from(listener);
        let serving = tokio::spawn(server.serve_with_incoming(connections));
        Ok(Self {
            address,
            count,
            serving,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of traces received.
    pub(super) fn traces(&self) -> u64 {
        self.count.0.load(Ordering::Relaxed)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
