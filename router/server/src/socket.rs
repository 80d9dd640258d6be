//! A client's connection, with or without TLS.
//!
//! hyper, the fast path and the writer of the last response share it. A plain socket supports concurrent use. The TLS
//! state is behind an uncontended lock, because its users never overlap.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's connection. A plain one is stored inline: each token is written to it, and a pointer would cost another
/// cache line.
#[derive(Debug)]
pub struct Socket(SocketKind);

#[derive(Debug)]
enum SocketKind {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
}

#[derive(Debug)]
struct Encrypted {
    tcp: Tcp,
    tls: Mutex<TlsStream<Tcp>>,
}

impl Socket {
    /// Returns the socket of a connection without TLS.
    pub fn plain(stream: TcpStream) -> Self {
        Self(SocketKind::Plain(stream))
    }

    /// Returns the socket of a connection with TLS.
    pub fn encrypted(stream: TlsStream<Tcp>) -> Self {
        Self(SocketKind::Encrypted(Box::new(Encrypted {
            tcp: stream.get_ref().0.clone(),
            tls: Mutex::new(stream),
        })))
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.0, SocketKind::Encrypted(_))
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        match &self.0 {
            SocketKind::Plain(stream) => stream,
            SocketKind::Encrypted(encrypted) => &encrypted.tcp.0,
        }
    }

    /// Waits until the client has closed its side, by FIN or RST, even if earlier bytes are unread.
    pub(super) async fn closed_by_client(&self) {
        // This interest reports only the end of the read side and errors, and is never cleared.
        let closed = Interest::PRIORITY | Interest::ERROR;
        // An error means that the runtime is shutting down.
        let _ = self.tcp().ready(closed).await;
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            SocketKind::Plain(stream) => read(stream, cx, buf),
            SocketKind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_read(cx, buf),
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.0 {
            SocketKind::Plain(stream) => write(stream, cx, bufs),
            SocketKind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_write_vectored(cx, bufs),
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            SocketKind::Plain(_) => Poll::Ready(Ok(())),
            SocketKind::Encrypted(stream) => Pin::new(&mut *stream.tls.lock()).poll_flush(cx),
        }
    }

    /// Shuts down the write side. The read side stays open.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &self.0 {
            SocketKind::Plain(stream) => shut_down(stream),
            SocketKind::Encrypted(stream) => ready!(Pin::new(&mut *stream.tls.lock()).poll_shutdown(cx)),
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

/// Reads available bytes. A read that does not fill the buffer has emptied the socket, so readiness is cleared until
/// the kernel reports more, which saves a system call per request.
fn try_read(stream: &TcpStream, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
    let room = buf.remaining();
    let mut read = Err(io::ErrorKind::WouldBlock.into());
    // Within `try_io`, so that readiness reported in the meantime is not cleared too.
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
    // There is nearly always room in the send buffer, so readiness is checked only after a failed write.
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

/// TCP connection below TLS, shared so that it can be watched while TLS owns the stream.
#[derive(Clone, Debug)]
pub struct Tcp(Arc<TcpStream>);

impl Tcp {
    /// Shares a TCP stream.
    pub fn new(stream: TcpStream) -> Self {
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
