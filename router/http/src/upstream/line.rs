//! Connections of hyper's client to workers, which know whether bytes are still to be written.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower_service::Service;

use crate::tls::ConnectError;

/// Whether bytes that a connection has accepted are still to be written. hyper puts it into each response's extensions.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteState(Arc<AtomicBool>);

impl WriteState {
    pub(super) fn is_writing(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set_writing(&self, is_writing: bool) {
        self.0.store(is_writing, Ordering::Release);
    }
}

/// The bytes of a connection to a worker.
trait WireStream: Read + Write + Send + Unpin {}

impl<S: Read + Write + Send + Unpin> WireStream for S {}

/// A connection to a worker that tracks its writes.
pub(super) struct Wire {
    stream: Box<dyn WireStream>,
    line: WriteState,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Wire, ConnectError>> + Send>>;

/// Connects to workers with [`Wire`]s.
#[derive(Clone)]
pub(super) struct WireConnector(Arc<dyn Fn(Uri) -> Connecting + Send + Sync>);

impl WireConnector {
    pub(super) fn new<C>(connector: C) -> Self
    where
        C: Service<Uri, Error = ConnectError, Future: Send> + Clone + Send + Sync + 'static,
        C::Response: Read + Write + Send + Unpin + 'static,
    {
        let connect = move |uri| -> Connecting {
            let mut connector = connector.clone();
            Box::pin(async move {
                poll_fn(|cx| connector.poll_ready(cx)).await?;
                let stream = Box::new(connector.call(uri).await?);
                let line = WriteState::default();
                Ok(Wire { stream, line })
            })
        };
        Self(Arc::new(connect))
    }
}

impl Service<Uri> for WireConnector {
    type Response = Wire;
    type Error = ConnectError;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        self.0(uri)
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.line.clone())
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.line.set_writing(true);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.line.set_writing(true);
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes. hyper does so once all that it has was accepted; with TLS everything is written only then.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.line.set_writing(false);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
