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

/// A client's connection. A plain one is held here itself: each token is written to it, and another pointer to follow would
/// be a cache line more.
#[derive(Debug)]
pub(crate) struct Socket(Kind);

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
}

#[derive(Debug)]
struct Encrypted {
    /// The connection beneath.
    tcp: Tcp,
    tls: Mutex<TlsStream<Tcp>>,
}

impl Socket {
    /// Without encryption.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self(Kind::Plain(stream))
    }

    /// Within TLS.
    pub(crate) fn encrypted(stream: TlsStream<Tcp>) -> Self {
        Self(Kind::Encrypted(Box::new(Encrypted {
            tcp: stream.get_ref().0.clone(),
            tls: Mutex::new(stream),
        })))
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.0, Kind::Encrypted(_))
    }

    fn tcp(&self) -> &TcpStream {
        match &self.0 {
            Kind::Plain(stream) => stream,
            Kind::Encrypted(encrypted) => &encrypted.tcp.0,
        }
    }

    /// Ends once the client has closed its side, by FIN or RST, whatever it sent before that is still unread.
    pub(super) async fn closed_by_client(&self) {
        // Readiness of this interest is nothing but the end of the reading side, and errors; it is never cleared.
        let closed = Interest::PRIORITY | Interest::ERROR;
        // An error here means that the runtime is shutting down, and this socket with it.
        let _ = self.tcp().ready(closed).await;
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Kind::Plain(stream) => read(stream, cx, buf),
            Kind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_read(cx, buf),
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.0 {
            Kind::Plain(stream) => write(stream, cx, bufs),
            Kind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_write_vectored(cx, bufs),
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Kind::Plain(_) => Poll::Ready(Ok(())),
            Kind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_flush(cx),
        }
    }

    /// Nothing more will be written; what the other side sends can still be read.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &self.0 {
            Kind::Plain(stream) => shut_down(stream),
            Kind::Encrypted(stream) => ready!(Pin::new(&mut *stream.tls.lock()).poll_shutdown(cx)),
        };
        match shut {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

fn read(stream: &TcpStream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match try_read(stream, buf) {
            Ok(_) => return Poll::Ready(Ok(())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Reads what is there. A read that does not fill the buffer has emptied the socket, so the socket counts as not
/// readable until the system says otherwise: that spares a call per request that would only say so.
fn try_read(stream: &TcpStream, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
    let room = buf.remaining();
    let mut read = Err(io::ErrorKind::WouldBlock.into());
    // Asked from within, so that readiness which comes meanwhile is not taken back with it.
    let _ = stream.try_io(Interest::READABLE, || {
        read = stream.try_read_buf(buf);
        match read {
            Ok(count) if count > 0 && count < room => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            _ => Ok(()),
        }
    });
    read
}

fn write(stream: &TcpStream, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
    // There is room nearly always, so whether there is any is asked only once there was none.
    if let [one] = bufs
        && let Ok(written) = rustix::net::send(stream, one, SendFlags::NOSIGNAL)
    {
        return Poll::Ready(Ok(written));
    }
    loop {
        match stream.try_write_vectored(bufs) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready!(stream.poll_write_ready(cx))?;
            }
            written => return Poll::Ready(written),
        }
    }
}

fn shut_down(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write)
}

/// The TCP connection beneath TLS, shared so that it can be watched while TLS owns the stream.
#[derive(Clone, Debug)]
pub(crate) struct Tcp(Arc<TcpStream>);

impl Tcp {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }
}

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        read(&self.0, cx, buf)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        write(&self.0, cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        write(&self.0, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shut_down(&self.0))
    }
}
