//! Checks a client's bytes with [`Framing`] before hyper reads them.
//!
//! Nothing after a rejected line reaches hyper. A rejected head is answered in order: hyper sees the end of the
//! connection once the earlier responses are complete and written, and then the connection's task writes the error
//! ([`Progress::refusal`]). A rejected line within a body aborts that body, which then is never taken for complete.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::framing::{Framing, RefusedLine, Why};
use super::progress::Progress;
use super::shared_socket::SharedSocket;
use protocol::error::ApiError;
use tailroute_http::byte_reservation::ByteReservation;

/// Size in bytes of an unfinished head up to which it does not count against the bound of all connections; hyper
/// buffers as much anyway.
const UNCOUNTED_BYTES: usize = 8 * 1024;

/// The check of one connection's incoming bytes.
#[derive(Debug)]
pub(super) struct FramingCheck {
    framing: Framing,
    /// Reservation of the bytes of an unfinished head.
    room: ByteReservation,
    is_refused: bool,
}

impl FramingCheck {
    /// Returns a check that rejects heads of more than `max_head` bytes.
    pub(super) fn new(max_head: usize, room: ByteReservation) -> Self {
        Self {
            framing: Framing::new(max_head),
            room,
            is_refused: false,
        }
    }

    /// Reads bytes for hyper, up to the first rejected line.
    pub(super) fn poll_read(
        &mut self,
        shared: &SharedSocket,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_refused {
            let before = buf.filled().len();
            ready!(shared.poll_read(cx, buf))?;
            let passed = self.check(shared.progress(), &buf.filled()[before..]);
            buf.set_filled(before + passed);
            // Returning no bytes for a rejected line would signal the end of the connection.
            if passed > 0 || !self.is_refused {
                return Poll::Ready(Ok(()));
            }
        }
        poll_end(shared, cx)
    }

    /// Checks the next bytes, and records their requests. Returns the number of bytes that hyper may read.
    fn check(&mut self, progress: &Progress, came: &[u8]) -> usize {
        if progress.is_upgraded() {
            self.framing.on_upgrade();
        }
        let passed = match self.framing.read(came) {
            Err(refused) => {
                self.refuse(progress, refused);
                refused.at
            }
            Ok(()) if came.is_empty() || self.reserve() => came.len(),
            Ok(()) => {
                self.is_refused = true;
                progress.refuse(ApiError::Overloaded);
                0
            }
        };
        let (complete, has_more) = self.framing.requests();
        progress.read_requests(complete, has_more);
        if self.framing.is_http2() {
            progress.speaks_http2();
        }
        progress.reads_head(self.framing.open_head());
        passed
    }

    /// Adjusts the reservation to the unfinished head. Returns whether the bound of all connections allows it.
    fn reserve(&mut self) -> bool {
        let counted = self.framing.unfinished_head().saturating_sub(UNCOUNTED_BYTES);
        self.room.resize(counted)
    }

    /// Stops reading after a rejected line.
    fn refuse(&mut self, progress: &Progress, refused: RefusedLine) {
        self.is_refused = true;
        if refused.in_head {
            progress.refuse(match refused.why {
                Why::Malformed => ApiError::MalformedHttp,
                Why::TargetTooLong => ApiError::UriTooLong,
                Why::HeadTooLarge => ApiError::HeadersTooLarge,
            });
        }
    }
}

/// Ends the read side for hyper after a refusal: with a failure if the line belongs to a body, or in HTTP/2.
fn poll_end(shared: &SharedSocket, cx: &Context<'_>) -> Poll<io::Result<()>> {
    if shared.progress().refusal().is_none() || shared.progress().is_http2() {
        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
    }
    // The waker is registered before the check: an answer completed in between wakes the task.
    shared.progress().wake_when_answered(cx.waker());
    if shared.is_answered() {
        Poll::Ready(Ok(()))
    } else {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn read(check: &mut FramingCheck, shared: &SharedSocket) -> io::Result<Vec<u8>> {
        let mut memory = [0; 1000];
        let mut buf = ReadBuf::new(&mut memory);
        poll_fn(|cx| check.poll_read(shared, cx, &mut buf)).await?;
        Ok(buf.filled().to_vec())
    }

    fn check() -> FramingCheck {
        FramingCheck::new(1000, ByteReservation::new(Arc::default(), 1000))
    }

    #[tokio::test]
    async fn the_input_ends_at_a_rejected_head_once_earlier_responses_are_written() {
        for is_held_back in [false, true] {
            let (mut client, shared) = SharedSocket::pair().await;
            let (mut check, good) = (check(), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
            client
                .write_all(&[good, &b"GET /\r\n"[..]].concat())
                .await
                .unwrap();
            assert_eq!(read(&mut check, &shared).await.unwrap(), good);
            let refusal = shared.progress().refusal();
            assert!(matches!(refusal, Some(ApiError::MalformedHttp)));
            let request = shared.progress().request_began();
            shared.on_output(!is_held_back);
            let reader = Arc::clone(&shared);
            let end = tokio::spawn(async move { read(&mut check, &reader).await });
            tokio::task::yield_now().await;
            assert!(!end.is_finished(), "a request is open");
            drop(request);
            if is_held_back {
                tokio::task::yield_now().await;
                assert!(!end.is_finished(), "the response is not written");
                shared.on_output(true);
            }
            let end = tokio::time::timeout(Duration::from_secs(5), end).await;
            assert_eq!(end.unwrap().unwrap().unwrap(), b"");
        }
    }

    #[tokio::test]
    async fn the_input_fails_at_a_rejected_line_of_a_body() {
        let (mut client, shared) = SharedSocket::pair().await;
        let (mut check, good) = (
            check(),
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        client.write_all(&[good, &b"x\r\n"[..]].concat()).await.unwrap();
        assert_eq!(read(&mut check, &shared).await.unwrap(), good);
        assert!(read(&mut check, &shared).await.is_err());
        assert!(shared.progress().refusal().is_none());
    }
}
