//! Passes a client's bytes to hyper after checking them with [`Framing`].
//!
//! Nothing after a rejected line reaches hyper. A rejected head is answered in order: hyper sees the end of the
//! connection once the earlier responses are complete and written, and then the connection's task writes the error
//! ([`Progress::refusal`]). A rejected line within a body aborts that body, which then is never taken for complete.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Framing, RefusedLine, Why};
use super::progress::Progress;
use protocol::error::ApiError;
use tailroute_http::unread::Unread;

/// Size in bytes of an unfinished head up to which it does not count against the bound of all connections; hyper
/// buffers as much anyway.
const UNCOUNTED_BYTES: usize = 8 * 1024;

/// A connection whose incoming bytes are checked. Outgoing bytes are passed through.
#[derive(Debug)]
pub(super) struct Checked<S> {
    inner: S,
    framing: Framing,
    progress: Arc<Progress>,
    /// Reservation of the bytes of an unfinished head.
    room: Unread,
    refused: Option<MessagePart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePart {
    Head,
    Body,
}

impl<S> Checked<S> {
    /// Returns a checked connection whose heads have at most `max_head` bytes.
    pub(super) fn new(inner: S, progress: Arc<Progress>, max_head: usize, room: Unread) -> Self {
        Self {
            inner,
            framing: Framing::new(max_head),
            progress,
            room,
            refused: None,
        }
    }

    /// Reserves room for the unfinished head. Returns whether the bound of all connections allows it.
    fn has_room(&mut self) -> bool {
        let counted = self.framing.unfinished_head().saturating_sub(UNCOUNTED_BYTES);
        self.room.resize(counted)
    }

    /// Stops reading after a rejected line.
    fn refuse(&mut self, refused: RefusedLine) {
        if !refused.in_head {
            self.refused = Some(MessagePart::Body);
            return;
        }
        self.refused = Some(MessagePart::Head);
        self.progress.refuse(match refused.why {
            Why::Malformed => ApiError::MalformedHttp,
            Why::TargetTooLong => ApiError::UriTooLong,
            Why::HeadTooLarge => ApiError::HeadersTooLarge,
        });
    }

    /// Ends the read side for hyper after a rejected line.
    fn poll_end(&self, cx: &Context<'_>, part: MessagePart) -> Poll<io::Result<()>> {
        if part == MessagePart::Body || self.progress.is_http2() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        // The waker is registered before the check: an answer completed in between wakes the task.
        self.progress.wake_when_answered(cx.waker());
        if self.progress.is_answered() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let checked = self.get_mut();
        if let Some(part) = checked.refused {
            return checked.poll_end(cx, part);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut checked.inner).poll_read(cx, buf))?;
        if checked.progress.is_upgraded() {
            checked.framing.on_upgrade();
        }
        let came = &buf.filled()[before..];
        let passed = match checked.framing.read(came) {
            Err(refused) => {
                checked.refuse(refused);
                refused.at
            }
            Ok(()) if came.is_empty() || checked.has_room() => came.len(),
            Ok(()) => {
                checked.refused = Some(MessagePart::Head);
                checked.progress.refuse(ApiError::Overloaded);
                0
            }
        };
        let (complete, has_more) = checked.framing.requests();
        checked.progress.read_requests(complete, has_more);
        if checked.framing.is_http2() {
            checked.progress.speaks_http2();
        }
        checked.progress.reads_head(checked.framing.open_head());
        buf.set_filled(before + passed);
        match checked.refused {
            // Returning no bytes would signal the end of the connection.
            Some(part) if passed == 0 => checked.poll_end(cx, part),
            _ => Poll::Ready(Ok(())),
        }
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
