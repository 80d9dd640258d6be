//! A client's bytes on their way to hyper, past [`Framing`].
//!
//! Nothing behind a refused line reaches hyper. A refused head is answered in its turn: hyper sees the end of the connection
//! once the answers before it are complete and written, and the connection's task then says what was wrong
//! ([`Progress::refusal`]). A refused line within a body breaks that body off, so that it is never taken for a whole one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Framing, Refused, Why};
use super::progress::Progress;
use protocol::error::ApiError;
use tailroute_http::unread::Unread;

/// Bytes of an unfinished head that are not counted among what all connections hold: hyper reads into as much at once.
const UNCOUNTED_BYTES: usize = 8 * 1024;

/// A connection whose framing is checked on the way in; what goes out passes as it is.
#[derive(Debug)]
pub(super) struct Checked<S> {
    inner: S,
    framing: Framing,
    progress: Arc<Progress>,
    /// Room for an unfinished head.
    room: Unread,
    refused: Option<Part>,
}

/// What a refused line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Body,
}

impl<S> Checked<S> {
    /// A connection at its beginning, whose heads have up to `max_head` bytes.
    pub(super) fn new(inner: S, progress: Arc<Progress>, max_head: usize, room: Unread) -> Self {
        Self {
            inner,
            framing: Framing::new(max_head),
            progress,
            room,
            refused: None,
        }
    }

    /// Whether what was read leaves the heads of all connections within their bound.
    fn has_room(&mut self) -> bool {
        let counted = self.framing.unfinished_head().saturating_sub(UNCOUNTED_BYTES);
        self.room.resize(counted)
    }

    /// Nothing more is read.
    fn refuse(&mut self, refused: Refused) {
        if !refused.in_head {
            self.refused = Some(Part::Body);
            return;
        }
        self.refused = Some(Part::Head);
        self.progress.refuse(match refused.why {
            Why::Malformed => ApiError::MalformedHttp,
            Why::TargetTooLong => ApiError::UriTooLong,
            Why::HeadTooLarge => ApiError::HeadersTooLarge,
        });
    }

    /// What hyper reads after a refused line.
    fn poll_end(&self, cx: &Context<'_>, part: Part) -> Poll<io::Result<()>> {
        if part == Part::Body || self.progress.is_http2() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        // In this order: what is complete after the question wakes the task.
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
            checked.framing.is_upgraded();
        }
        let came = &buf.filled()[before..];
        let passed = match checked.framing.read(came) {
            Err(refused) => {
                checked.refuse(refused);
                refused.at
            }
            Ok(()) if came.is_empty() || checked.has_room() => came.len(),
            Ok(()) => {
                checked.refused = Some(Part::Head);
                checked.progress.refuse(ApiError::Overloaded);
                0
            }
        };
        let (complete, has_more) = checked.framing.requests();
        checked.progress.read_requests(complete, has_more);
        if let Some((begun, is_open)) = checked.framing.header_blocks() {
            checked.progress.speaks_http2(begun, is_open);
        }
        buf.set_filled(before + passed);
        match checked.refused {
            // To pass nothing on would say that the connection has ended.
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
