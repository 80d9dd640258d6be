//! Connections of hyper's client to workers, which know whether bytes are still to be written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::tls::{ConnectError, Connector};

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

/// A connection to a worker that tracks its writes.
#[derive(Debug)]
pub(super) struct Wire {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    line: WriteState,
}

/// Connects to workers with [`Wire`]s.
#[derive(Clone, Debug)]
pub(super) struct WireConnector(pub(super) Connector);

impl Service<Uri> for WireConnector {
    type Response = Wire;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Wire, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            Ok(Wire {
                stream: connecting.await?,
                line: WriteState::default(),
            })
        })
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.line.clone())
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
