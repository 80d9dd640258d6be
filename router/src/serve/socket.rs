//! A client's connection, encrypted or not.
//!
//! It is shared: hyper reads and writes it, pieces of streams are written past hyper, and when hyper has let go of it, its
//! last answer is still written. A plain socket can be used from all sides as it is; the state of an encrypted one is
//! behind a lock that nobody waits for, since they never use it at the same time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's connection.
#[derive(Debug)]
pub(crate) enum Socket {
    /// As it is.
    Plain(TcpStream),
    /// Within TLS.
    Encrypted(Box<Mutex<TlsStream<TcpStream>>>),
}

impl Socket {
    /// Within TLS.
    pub(crate) fn encrypted(stream: TlsStream<TcpStream>) -> Self {
        Self::Encrypted(Box::new(Mutex::new(stream)))
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Encrypted(stream) => return Pin::new(&mut *stream.lock()).poll_read(cx, buf),
        };
        loop {
            ready!(stream.poll_read_ready(cx))?;
            match read(stream, buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Encrypted(stream) => return Pin::new(&mut *stream.lock()).poll_write_vectored(cx, bufs),
        };
        // There is room nearly always, so whether there is any is asked only once there was none.
        if let [one] = bufs
            && let Ok(written) = rustix::net::send(stream, one, SendFlags::NOSIGNAL)
        {
            return Poll::Ready(Ok(written));
        }
        loop {
            match stream.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx))?
                }
                written => return Poll::Ready(written),
            }
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Encrypted(stream) => Pin::new(&mut *stream.lock()).poll_flush(cx),
        }
    }

    /// Nothing more will be written; what the other side sends can still be read.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match self {
            Self::Plain(stream) => socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write),
            Self::Encrypted(stream) => ready!(Pin::new(&mut *stream.lock()).poll_shutdown(cx)),
        };
        match shut {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Reads what is there. A read that does not fill the buffer has emptied the socket, so the socket counts as not readable
/// until the system says otherwise: that spares a call per request that would only say so.
fn read(stream: &TcpStream, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
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
