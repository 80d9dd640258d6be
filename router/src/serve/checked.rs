//! A client's bytes on their way to hyper, past [`Framing`].
//!
//! A request that is refused must be answered in its turn, after the requests before it on the same connection. hyper
//! does exactly that with a request that it cannot parse. So where a refused line begins, a NUL is put, which no parser
//! of HTTP/1 passes in a head, and the head ends with it: hyper answers 400 when it gets there and closes. Where the line
//! belongs to a body, the body breaks off at the NUL, and is never taken for a whole one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_io::Progress;
use super::framing::Framing;

/// A connection whose framing is checked on the way in; what goes out passes as it is.
#[derive(Debug)]
pub(super) struct Checked<S> {
    inner: S,
    framing: Framing,
    progress: Arc<Progress>,
    refused: Option<Rest>,
}

/// What is still to come after the NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The end of a head: hyper looks at one only when it is whole.
    EndOfHead,
    /// An error.
    Nothing,
}

impl<S> Checked<S> {
    /// A connection at its beginning, whose heads hyper reads up to `max_head` bytes.
    pub(super) fn new(inner: S, progress: Arc<Progress>, max_head: usize) -> Self {
        Self {
            inner,
            // hyper looks at its limit after it has read, so it may have read more.
            framing: Framing::new(max_head.saturating_mul(4)),
            progress,
            refused: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let checked = self.get_mut();
        const END_OF_HEAD: &[u8] = b"\r\n\r\n";
        if let Some(rest) = &mut checked.refused {
            if *rest == Rest::EndOfHead && buf.remaining() >= END_OF_HEAD.len() {
                *rest = Rest::Nothing;
                buf.put_slice(END_OF_HEAD);
                return Poll::Ready(Ok(()));
            }
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut checked.inner).poll_read(cx, buf))?;
        if checked.progress.is_upgraded() {
            checked.framing.is_upgraded();
        }
        let came = &mut buf.filled_mut()[before..];
        if let Err(refused) = checked.framing.read(came) {
            checked.refused = Some(if refused.in_head {
                Rest::EndOfHead
            } else {
                Rest::Nothing
            });
            came[refused.at] = 0;
            buf.set_filled(before + refused.at + 1);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
