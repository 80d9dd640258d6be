//! A client's connection, encrypted or not.
//!
//! It is shared: hyper reads and writes it, pieces of streams are written past hyper, and the last answer is written after
//! hyper has let go of it. A plain socket can be used from all sides as it is. The state of an encrypted one is behind a
//! lock without contention, since its users never overlap.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: Tcp,
    tls: Option<Box<Mutex<TlsStream<Tcp>>>>,
}

impl Socket {
    /// Without encryption.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self {
            tcp: Tcp::new(stream),
            tls: None,
        }
    }

    /// Within TLS.
    pub(crate) fn encrypted(stream: TlsStream<Tcp>) -> Self {
        Self {
            tcp: stream.get_ref().0.clone(),
            tls: Some(Box::new(Mutex::new(stream))),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Ends once the client has closed its side, by FIN or RST, whatever it sent before that is still unread.
    pub(super) async fn closed_by_client(&self) {
        // Readiness of this interest is nothing but the end of the reading side, and errors; it is never cleared.
        let closed = Interest::PRIORITY | Interest::ERROR;
        // An error here means that the runtime is shutting down, and this socket with it.
        let _ = self.tcp.0.ready(closed).await;
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &self.tls {
            None => self.tcp.read(cx, buf),
            Some(stream) => Pin::new(&mut *stream.lock()).poll_read(cx, buf),
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.tls {
            None => self.tcp.write(cx, bufs),
            Some(stream) => Pin::new(&mut *stream.lock()).poll_write_vectored(cx, bufs),
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.tls {
            None => Poll::Ready(Ok(())),
            Some(stream) => Pin::new(&mut *stream.lock()).poll_flush(cx),
        }
    }

    /// Nothing more will be written; what the other side sends can still be read.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &self.tls {
            None => self.tcp.shut_down(),
            Some(stream) => ready!(Pin::new(&mut *stream.lock()).poll_shutdown(cx)),
        };
        match shut {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// The TCP connection beneath, shared with TLS so that it can be watched while TLS owns the stream.
#[derive(Clone, Debug)]
pub(crate) struct Tcp(Arc<TcpStream>);

impl Tcp {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    fn read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.try_read(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads what is there. A read that does not fill the buffer has emptied the socket, so the socket counts as not
    /// readable until the system says otherwise: that spares a call per request that would only say so.
    fn try_read(&self, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
        let room = buf.remaining();
        let mut read = Err(io::ErrorKind::WouldBlock.into());
        // Asked from within, so that readiness which comes meanwhile is not taken back with it.
        let _ = self.0.try_io(Interest::READABLE, || {
            read = self.0.try_read_buf(buf);
            match read {
                Ok(count) if count > 0 && count < room => Err(io::Error::from(io::ErrorKind::WouldBlock)),
                _ => Ok(()),
            }
        });
        read
    }

    fn write(&self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        // There is room nearly always, so whether there is any is asked only once there was none.
        if let [one] = bufs
            && let Ok(written) = rustix::net::send(&self.0, one, SendFlags::NOSIGNAL)
        {
            return Poll::Ready(Ok(written));
        }
        loop {
            match self.0.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.0.poll_write_ready(cx))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        socket2::SockRef::from(&*self.0).shutdown(std::net::Shutdown::Write)
    }
}

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.read(cx, buf)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down())
    }
}
