//! The client for everything but turns in plain text: https, streamed bodies, control calls, upgrades.
//!
//! hyper writes and reads the messages. [`outgoing`](super::outgoing) decides on the fields of their heads that
//! describe the body and the connection, and this module decides which connections are used again.

use std::io;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::rt::{Read, Timer, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use super::line::{WireConnector, WriteState};
use super::outgoing::{self, Handed};
use super::{Error, MAX_HEAD_BYTES, MAX_IDLE, POOL_IDLE, PendingResponse, head, invalid};
use crate::body::{self, Body};
use crate::tls::ConnectError;

/// Connections to workers, with TLS where the URL is `https`.
#[derive(Clone)]
#[expect(clippy::disallowed_types, reason = "requests pass `outgoing` here")]
pub struct UpstreamClient {
    pooled: legacy::Client<WireConnector, Handed>,
    connector: WireConnector,
}

impl std::fmt::Debug for UpstreamClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamClient")
    }
}

impl UpstreamClient {
    /// Returns a client without connections. `timer` decides when idle connections are closed.
    #[expect(clippy::disallowed_types, reason = "requests pass `outgoing` here")]
    pub fn new<C>(connector: C, timer: impl Timer + Clone + Send + Sync + 'static) -> Self
    where
        C: Service<Uri, Error = ConnectError, Future: Send> + Clone + Send + Sync + 'static,
        C::Response: Read + Write + Send + Unpin + 'static,
    {
        let connector = WireConnector::new(connector);
        Self {
            pooled: legacy::Client::builder(TokioExecutor::new())
                .pool_timer(timer)
                .timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(MAX_IDLE)
                .http1_max_buf_size(MAX_HEAD_BYTES)
                .build(connector.clone()),
            connector,
        }
    }

    /// Sends a request. Its connection is used again only if all of the request was written before the response began,
    /// and the response was read to its end. Fails on a response with ambiguous framing, or one that switches
    /// protocols.
    pub fn send(
        &self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, Error>> + Send + use<> {
        let (mut request, is_whole) = outgoing::announced(request);
        let connection = capture_connection(&mut request);
        let pending = self.pooled.request(request);
        async move {
            let mut response = pending.await?;
            let line = response.extensions_mut().remove::<WriteState>();
            let is_written = is_whole.load(Ordering::Acquire) && !line.is_none_or(|line| line.is_writing());
            let vetted = match response.status() {
                StatusCode::SWITCHING_PROTOCOLS => Err(head::HeadError::Switched),
                _ => head::vetted(&mut response),
            };
            if !is_written || !matches!(vetted, Ok(head::IsPlain(true))) {
                connection
                    .connection_metadata()
                    .as_ref()
                    .inspect(|used| used.poison());
            }
            match vetted {
                Ok(_) => Ok(response),
                Err(error) => Err(Error::Lost(invalid(error))),
            }
        }
    }

    /// Sends a request whose body is in memory. Dropping the reply closes the connection.
    #[must_use]
    pub fn reply(&self, request: Request<Bytes>) -> PendingResponse {
        let sent = self.send(request.map(body::full));
        PendingResponse(Box::pin(
            async move { Ok(sent.await?.map(super::ResponseBody::from)) },
        ))
    }

    /// Asks a worker to switch to `protocol`, on a connection that carries no other request.
    pub async fn upgrade(
        &self,
        mut head: Request<()>,
        protocol: HeaderValue,
    ) -> Result<Response<Incoming>, Error> {
        let mut connector = self.connector.clone();
        let refused = |error| Error::Connect(io::Error::other(error));
        let wire = connector.call(head.uri().clone()).await.map_err(refused)?;
        outgoing::upgrading(&mut head, protocol);
        let lost = |error: hyper::Error| Error::Lost(io::Error::other(error));
        #[expect(clippy::disallowed_methods, reason = "the request passed `outgoing`")]
        let mut builder = http1::Builder::new();
        let (mut sender, connection) = builder
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(wire)
            .await
            .map_err(lost)?;
        // Ends with the response's body or the tunnel: no other request is sent. Its error is the response's.
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let request = head.map(|()| Empty::<Bytes>::new());
        let mut response = sender.send_request(request).await.map_err(lost)?;
        match head::vetted(&mut response) {
            Ok(_) => Ok(response),
            Err(error) => Err(Error::Lost(invalid(error))),
        }
    }
}
