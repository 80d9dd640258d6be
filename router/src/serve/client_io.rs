//! A client's socket, so that nobody is left without an answer that says what was wrong.
//!
//! hyper answers a request that it cannot parse with a bare status line, and one whose headers never end with nothing.
//! Clients of this API expect a JSON error. So the bare answer is recognised on its way out and given its body, and the
//! socket can still be written to after hyper has given up on it.
//!
//! A client that does not read holds what is behind its answer: hyper asks for no more of it, so nothing there can notice
//! that its time is up. So it is this socket that gives up, when nothing that waits to be written could be for a while.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

use super::express::Outgoing;
use super::socket::Socket;
use crate::error::ApiError;

/// Longest bare answer; hyper's is a status line, a date and a length.
const BARE_ANSWER_BYTES: usize = 256;
/// Time that a client is given to read its last answer and close.
const LINGER: Duration = Duration::from_secs(5);
/// Buffer for what is read only to be thrown away.
const WASTE_BYTES: usize = 16 * 1024;

/// How far a connection has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    requests: AtomicBool,
    used: AtomicBool,
    http2: AtomicBool,
    unanswered: AtomicBool,
    upgraded: AtomicBool,
}

impl Progress {
    pub(super) fn request_began(&self, version: Version) {
        self.requests.store(true, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        if version == Version::HTTP_2 {
            self.http2.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any request was read to the end of its head.
    pub(super) fn any_request(&self) -> bool {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a request began since this was asked last.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Whether it is known to speak HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// The connection speaks another protocol from here on.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Whether bytes came in after the last answer went out.
    pub(super) fn half_a_request(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed)
    }
}

/// The socket as hyper sees it.
#[derive(Debug)]
pub(crate) struct ClientIo {
    stream: Arc<Socket>,
    outgoing: Arc<Outgoing>,
    progress: Arc<Progress>,
    /// For how long a client may take nothing of what waits for it, and when that is over if it does not now.
    patience: Duration,
    stuck: Option<Pin<Box<Sleep>>>,
    /// Whether bare answers are given the data port's body.
    completes: bool,
    /// An answer that goes out in place of a bare one, and how much of it is out.
    instead: Option<(Vec<u8>, usize)>,
    /// The connection's place among all of them. It is here because a tunnel outlives the serving of its connection.
    _place: Arc<OwnedSemaphorePermit>,
}

impl ClientIo {
    pub(super) fn new(
        (stream, outgoing): (Arc<Socket>, Arc<Outgoing>),
        progress: Arc<Progress>,
        place: Arc<OwnedSemaphorePermit>,
        patience: Duration,
    ) -> Self {
        Self {
            stream,
            outgoing,
            progress,
            patience,
            stuck: None,
            completes: true,
            instead: None,
            _place: place,
        }
    }

    /// A connection of another port, whose answers go out as they are.
    pub(crate) fn of_other_port(socket: Socket, place: OwnedSemaphorePermit, patience: Duration) -> Self {
        Self {
            completes: false,
            ..Self::new(
                (Arc::new(socket), Arc::default()),
                Arc::default(),
                Arc::new(place),
                patience,
            )
        }
    }

    /// What became of writing, unless the client has taken nothing for too long.
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

    /// What is left of a piece that went past hyper is written first.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let written = self.outgoing.poll_rest(cx, &self.stream);
            if matches!(written, Poll::Ready(Ok(0))) {
                return Poll::Ready(Ok(()));
            }
            ready!(self.in_time(cx, written))?;
        }
    }

    fn poll_instead(&mut self, cx: &mut Context<'_>, replaced: usize) -> Poll<io::Result<usize>> {
        while let Some((answer, written)) = &mut self.instead {
            *written += ready!(
                self.stream
                    .poll_write(cx, &[io::IoSlice::new(&answer[*written..])])
            )?;
            if *written == answer.len() {
                self.instead = None;
            }
        }
        Poll::Ready(Ok(replaced))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        let before = buf.filled().len();
        ready!(io.stream.poll_read(cx, buf))?;
        if buf.filled().len() > before {
            io.progress.unanswered.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
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
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        if io.completes
            && io.instead.is_none()
            && let Some(error) = bare_answer(first)
        {
            io.instead = Some((raw(&error), 0));
        }
        if io.instead.is_some() {
            let written = io.poll_instead(cx, first.len());
            return io.in_time(cx, written);
        }
        let written = io.stream.poll_write(cx, bufs);
        let asked: usize = bufs.iter().map(|buf| buf.len()).sum();
        io.outgoing
            .written(matches!(written, Poll::Ready(Ok(count)) if count == asked));
        let count = ready!(io.in_time(cx, written))?;
        io.progress.unanswered.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        ready!(io.poll_rest(cx))?;
        let flushed = io.stream.poll_flush(cx);
        match *io.stream {
            // It has nothing to flush: that it is ready says nothing of what waits to be written.
            Socket::Plain(_) => flushed,
            Socket::Encrypted(_) => {
                io.outgoing.written(flushed.is_ready());
                io.in_time(cx, flushed)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(cx)
    }
}

/// Recognises an answer that hyper made by itself: an error without a body and without any header of ours.
fn bare_answer(bytes: &[u8]) -> Option<ApiError> {
    if bytes.len() > BARE_ANSWER_BYTES || !bytes.starts_with(b"HTTP/1.1 4") || !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?;
    if !head.contains("content-length: 0\r\n") || head.contains("x-tailroute-") {
        return None;
    }
    match head.get(9..12)? {
        "400" => Some(ApiError::MalformedHttp),
        "414" => Some(ApiError::UriTooLong),
        "431" => Some(ApiError::HeadersTooLarge),
        _ => None,
    }
}

/// An error as a whole HTTP/1.1 answer, after which the connection closes.
fn raw(error: &ApiError) -> Vec<u8> {
    let (status, json) = (error.status(), error.json());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}: {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
        json.len(),
        crate::error::ERROR_HEADER,
        error.code(),
    );
    [head.as_bytes(), &json].concat()
}

/// Says an error on a connection that hyper has given up on.
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

/// Closes a connection so that the client gets to read the last answer: closing while it still sends, as a client
/// whose request is too large does, would reset the connection under it. So what it sends is read and thrown away for
/// a while, until it closes too.
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
    fn only_hypers_own_bare_answers_are_replaced() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert!(matches!(bare_answer(bare), Some(ApiError::HeadersTooLarge)));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\nx-tailroute-worker: w\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"",
        ] {
            assert!(bare_answer(other).is_none(), "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn the_raw_answer_is_whole() {
        let raw = String::from_utf8(raw(&ApiError::MalformedHttp)).unwrap();
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert!(head.contains(&format!("content-length: {}", body.len())));
        assert!(body.contains("malformed_http"));
    }
}
