//! A collector of spans, by gRPC and by HTTP.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use config::OtlpProtocol;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;

/// The spans and the credentials that a collector has received.
#[derive(Clone, Default)]
pub(super) struct Received {
    pub(super) spans: Arc<Mutex<Vec<Span>>>,
    /// Values of the `authorization` header.
    pub(super) shown: Arc<Mutex<Vec<String>>>,
    /// Batches that it has refused, and is yet to refuse: for now, or for good.
    pub(super) refused: Arc<Mutex<Vec<Refusal>>>,
    pub(super) refuses: Arc<Mutex<Vec<Refusal>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Refusal {
    ForNow,
    ForGood,
}

impl Received {
    pub(super) fn take_in(&self, message: ExportTraceServiceRequest) {
        let scopes = message.resource_spans.into_iter().flat_map(|resource| {
            let attributes = resource.resource.unwrap().attributes;
            assert!(attributes.iter().any(|attribute| attribute.key == "service.name"));
            resource.scope_spans
        });
        self.spans.lock().extend(scopes.flat_map(|scope| scope.spans));
    }

    /// Whether the batch at hand is refused.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let refusal = self.refuses.lock().pop()?;
        self.refused.lock().push(refusal);
        Some(refusal)
    }

    pub(super) fn shown(&self, authorization: Option<&str>) {
        self.shown.lock().extend(authorization.map(str::to_owned));
    }

    /// Returns the spans of a trace by name, once the request's own span has come.
    pub(super) async fn trace(&self, trace: &str) -> HashMap<String, Span> {
        let of = |span: &&Span| hex(&span.trace_id) == trace;
        until("the trace has come", || {
            self.spans.lock().iter().any(|span| of(&span))
        })
        .await;
        let all = self.spans.lock();
        let kinds = |span: &Span| {
            if span.kind == 3 {
                format!("to {}", text(span, "tailroute.worker"))
            } else {
                span.name.clone()
            }
        };
        all.iter()
            .filter(of)
            .map(|span| (kinds(span), span.clone()))
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        self.spans.lock().iter().filter(|span| span.kind == 2).count()
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn value<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    attribute.value.as_ref()?.value.as_ref()
}

pub(super) fn text(span: &Span, key: &str) -> String {
    match value(span, key) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

pub(super) fn number(span: &Span, key: &str) -> i64 {
    match value(span, key) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{key}: {other:?}"),
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let shown = request.metadata().get("authorization");
        self.shown(shown.map(|shown| shown.to_str().unwrap()));
        match self.refusal() {
            Some(Refusal::ForNow) => return Err(tonic::Status::unavailable("full")),
            Some(Refusal::ForGood) => return Err(tonic::Status::invalid_argument("no")),
            None => self.take_in(request.into_inner()),
        }
        Ok(tonic::Response::new(Default::default()))
    }
}

pub(super) async fn grpc() -> (Received, SocketAddr) {
    let received = Received::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TraceServiceServer::new(received.clone());
    let connections = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(connections),
    );
    (received, address)
}

/// Starts a collector of protobuf over HTTP.
async fn http() -> (Received, SocketAddr) {
    let received = Received::default();
    let mut upstream = Upstream::start().await;
    let (address, takes) = (upstream.address, received.clone());
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next().await;
            assert!(exchange.head.starts_with("POST /v1/traces "), "{}", exchange.head);
            assert_eq!(exchange.header("content-type"), Some("application/x-protobuf"));
            takes.shown(exchange.header("authorization"));
            let status = match takes.refusal() {
                Some(Refusal::ForNow) => "503 Service Unavailable",
                Some(Refusal::ForGood) => "400 Bad Request",
                None => {
                    takes.take_in(ExportTraceServiceRequest::decode(&*exchange.body).unwrap());
                    "200 OK"
                }
            };
            exchange.answer(status, "").await;
        }
    });
    (received, address)
}

/// Starts a collector.
pub(super) async fn collector(protocol: OtlpProtocol) -> (Received, SocketAddr) {
    match protocol {
        OtlpProtocol::Grpc => grpc().await,
        OtlpProtocol::Http => http().await,
    }
}
