//! Exports to a collector: `opentelemetry-otlp` over the router's own connections.
//!
//! TLS and connection timeouts are those of [`tailroute_http::tls`]. Headers are read for each export, so that a token
//! can change at run time. `OTEL_…` environment variables are ignored: the configuration is the only source.

#![expect(
    clippy::disallowed_types,
    reason = "the collector is no worker, and no request of a client goes there"
)]

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use config::OtlpProtocol;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use tailroute_http::tls::{self, Connector, TlsError};
use tonic::metadata::MetadataMap;
use tonic::transport::Endpoint;
use tracing::debug;

use super::TARGET;
use super::spans::SCHEMA;

const RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(2);
const MAX_ANSWER_BYTES: usize = 1 << 16;

/// Reason why the exporter cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The collector uses TLS and there are no roots to verify it.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The exporter rejects its settings.
    #[error("traces cannot be exported")]
    Build(#[from] ExporterBuildError),
}

pub(super) fn exporter(
    settings: &config::Traces,
    headers: Arc<ArcSwap<HeaderMap>>,
) -> Result<SpanExporter, ExporterError> {
    let connector = tls::towards_collector(HttpConnector::new(), settings, settings.timeout)?;
    let retries = RetryPolicy::recommended()
        .with_max_retries(RETRIES as usize)
        .with_initial_delay(PAUSE)
        .with_max_delay(MAX_PAUSE);
    // The library's limit covers all attempts of a batch; `timeout` applies to each.
    let limit = settings
        .timeout
        .saturating_mul(RETRIES + 1)
        .saturating_add(MAX_PAUSE * RETRIES);
    let mut exporter = match settings.protocol {
        OtlpProtocol::Grpc => {
            let endpoint = Endpoint::from(settings.endpoint.clone()).timeout(settings.timeout);
            let show = move |mut request: tonic::Request<()>| {
                *request.metadata_mut() = MetadataMap::from_headers(HeaderMap::clone(&headers.load()));
                Ok(request)
            };
            SpanExporter::builder()
                .with_tonic()
                .with_channel(endpoint.connect_with_connector_lazy(connector))
                .with_interceptor(show)
                .with_timeout(limit)
                .with_retry_policy(retries)
                .build()?
        }
        OtlpProtocol::Http => {
            let base = settings.endpoint.to_string();
            SpanExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(format!("{}/v1/traces", base.trim_end_matches('/')))
                .with_http_client(HttpCollector::new(connector, settings.timeout, headers))
                .with_timeout(limit)
                .with_retry_policy(retries)
                .build()?
        }
    };
    exporter.set_resource(&resource(&settings.service_name));
    Ok(exporter)
}

fn resource(service: &str) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let instance = format!("{}:{}", host.trim(), std::process::id());
    let attributes = [
        KeyValue::new("service.name", service.to_owned()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance),
    ];
    Resource::builder_empty()
        .with_schema_url(attributes, SCHEMA)
        .build()
}

#[derive(Debug)]
struct HttpCollector {
    client: Client<Connector, Full<Bytes>>,
    timeout: Duration,
    headers: Arc<ArcSwap<HeaderMap>>,
}

impl HttpCollector {
    fn new(connector: Connector, timeout: Duration, headers: Arc<ArcSwap<HeaderMap>>) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        Self {
            client: builder.pool_timer(TokioTimer::new()).build(connector),
            timeout,
            headers,
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut head, body) = request.into_parts();
        let kind = head.headers.remove(CONTENT_TYPE);
        head.headers = HeaderMap::clone(&self.headers.load());
        head.headers.extend(kind.map(|kind| (CONTENT_TYPE, kind)));
        let answer = self
            .client
            .request(Request::from_parts(head, Full::new(body)))
            .await?;
        let (head, body) = answer.into_parts();
        // Drained to reuse the connection. Only the status matters.
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        Ok(Response::from_parts(
            head,
            body.map(|body| body.to_bytes()).unwrap_or_default(),
        ))
    }
}

#[tonic::async_trait]
impl HttpClient for HttpCollector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = tokio::time::timeout(self.timeout, self.send(request)).await;
        let sent = sent.unwrap_or_else(|late| Err(late.into()));
        // The exporter's own error omits the cause.
        sent.inspect_err(
            |error| debug!(target: TARGET, %error, cause = error.source(), "a batch was not sent"),
        )
    }
}
