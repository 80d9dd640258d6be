//! A client's socket, used by hyper and, after hyper has released it, for the last response.
//!
//! A request that is rejected before hyper has read it, or never becomes complete, gets its JSON error here ([`say`]).
//! A client that does not read its response also blocks the timeouts behind it, because hyper polls the response no
//! further. So the socket fails when none of the pending output was accepted for some time.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::check::FramingCheck;
use super::connections::ConnectionPermit;
use super::shared_socket::SharedSocket;
use super::socket::Socket;
use protocol::error::ApiError;

/// Longest time that a client is given to read its last response and close.
const LINGER: Duration = Duration::from_secs(5);
const WASTE_BYTES: usize = 16 * 1024;

/// The socket as used by hyper.
#[derive(Debug)]
pub struct ClientIo {
    shared: Arc<SharedSocket>,
    /// Check of the client's bytes; `None` on other ports than the data port.
    check: Option<FramingCheck>,
    /// Longest time without progress on pending output.
    patience: Duration,
    /// Deadline of the pending output, if there is any.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl ClientIo {
    pub(super) fn new(shared: Arc<SharedSocket>, check: Option<FramingCheck>, patience: Duration) -> Self {
        Self {
            shared,
            check,
            patience,
            stuck: None,
        }
    }

    /// Returns the socket of a connection on another port than the data port.
    pub fn of_other_port(socket: Socket, permit: ConnectionPermit, patience: Duration) -> Self {
        Self::new(Arc::new(SharedSocket::new(socket, permit)), None, patience)
    }

    /// Passes on the result of a write, or a timeout if the client accepts nothing for too long.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let patience = self.patience;
        let stuck = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }

    /// Writes the remainder of a piece that was written past hyper, before any other output.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.shared.has_rest() {
            let written = self.shared.poll_rest(cx);
            ready!(self.in_time(cx, written))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        match &mut io.check {
            Some(check) => check.poll_read(&io.shared, cx, buf),
            None => io.shared.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let io = self.get_mut();
        ready!(io.poll_rest(cx))?;
        let written = io.shared.socket.poll_write(cx, bufs);
        let asked: usize = bufs.iter().map(|buf| buf.len()).sum();
        io.shared
            .on_output(matches!(written, Poll::Ready(Ok(count)) if count == asked));
        io.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        ready!(io.poll_rest(cx))?;
        let flushed = io.shared.socket.poll_flush(cx);
        if !io.shared.socket.is_encrypted() {
            // Nothing to flush does not mean that no output is pending.
            return flushed;
        }
        io.shared.on_output(flushed.is_ready());
        io.in_time(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shared.progress().refusal().is_some() {
            // The connection's task still has an error to write, and closes the socket after it.
            return Poll::Ready(Ok(()));
        }
        self.shared.socket.poll_shutdown(cx)
    }
}

/// Formats an error as a complete HTTP/1.1 response that closes the connection.
fn raw(error: &ApiError) -> Vec<u8> {
    let (status, json) = (error.status(), error.json());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}: {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
        json.len(),
        protocol::error::ERROR_HEADER,
        error.code(),
    );
    [head.as_bytes(), &json].concat()
}

/// Writes an error on a connection that hyper has released.
pub(super) async fn say(stream: &Socket, error: &ApiError) {
    let answer = raw(error);
    let mut rest = &answer[..];
    let write = async {
        while !rest.is_empty() {
            match poll_fn(|cx| stream.poll_write(cx, &[io::IoSlice::new(rest)])).await {
                Ok(count) if count > 0 => rest = &rest[count..],
                _ => return,
            }
        }
        let _ = poll_fn(|cx| stream.poll_flush(cx)).await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), write).await;
}

/// Closes a connection so that the client can read the last response. Closing while the client still sends would reset
/// the connection before that, so input is read and discarded for a while, until the client closes too.
pub(super) async fn close(stream: &Socket) {
    let mut waste = vec![0; WASTE_BYTES];
    let read = async {
        if poll_fn(|cx| stream.poll_shutdown(cx)).await.is_err() {
            return;
        }
        loop {
            let mut buf = ReadBuf::new(&mut waste);
            match poll_fn(|cx| stream.poll_read(cx, &mut buf)).await {
                Ok(()) if !buf.filled().is_empty() => {}
                _ => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, read).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_error_is_a_complete_response() {
        let raw = String::from_utf8(raw(&ApiError::MalformedHttp)).unwrap();
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(head.contains(&format!("content-length: {}", body.len())));
        assert!(body.contains("malformed_http"));
    }
}
