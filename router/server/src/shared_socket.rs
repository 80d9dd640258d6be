//! A client's socket, which hyper and the connection's task share.
//!
//! hyper uses it through [`ClientIo`](super::client_io::ClientIo). The task reads the bytes that hyper leaves in the
//! kernel ([`poll_read_ahead`](SharedSocket::poll_read_ahead)), and writes pieces of streams without hyper
//! ([`fast_path`](super::fast_path)). A backlog in each direction keeps the bytes in order.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::ReadBuf;

use super::connections::ConnectionPermit;
use super::progress::Progress;
use super::socket::Socket;

const READ_BYTES: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct SharedSocket {
    pub(super) socket: Socket,
    /// Permit of the connection, kept here because a tunnel outlives the serving of its connection.
    permit: ConnectionPermit,
    /// Bytes that the task has read and hyper has not.
    ahead: Backlog,
    /// Remainder of a piece that the kernel has not accepted, to be written before any output of hyper.
    rest: Backlog,
    /// Whether the kernel has not accepted all of hyper's output.
    is_held_back: AtomicBool,
}

impl SharedSocket {
    pub(super) fn new(socket: Socket, permit: ConnectionPermit) -> Self {
        Self {
            socket,
            permit,
            ahead: Backlog::default(),
            rest: Backlog::default(),
            is_held_back: AtomicBool::default(),
        }
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        self.permit.progress()
    }

    /// Reads for hyper: first the bytes that were read ahead.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return self.socket.poll_read(cx, buf);
        }
        let taken = self.ahead.take(|bytes| {
            let taken = bytes.len().min(buf.remaining());
            buf.put_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        });
        taken.map_ok(drop)
    }

    /// Reads some bytes ahead of hyper. Returns whether there were any before the end of the input.
    pub(super) fn poll_read_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut memory = [MaybeUninit::uninit(); READ_BYTES];
        let mut buf = ReadBuf::uninit(&mut memory);
        ready!(self.socket.poll_read(cx, &mut buf))?;
        self.ahead.append(buf.filled());
        Poll::Ready(Ok(!buf.filled().is_empty()))
    }

    /// Returns the number of bytes that were read ahead.
    pub(super) fn bytes_ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Writes a piece past hyper. Returns whether the kernel accepted all of it; otherwise hyper writes the remainder.
    pub(super) fn write_piece(&self, cx: &mut Context<'_>, piece: &[u8]) -> io::Result<bool> {
        let written = match self.socket.poll_write(cx, &[io::IoSlice::new(piece)]) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        if written < piece.len() {
            self.rest.append(&piece[written..]);
            return Ok(false);
        }
        match self.socket.poll_flush(cx) {
            Poll::Ready(flushed) => flushed.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Returns whether a piece has a remainder, which hyper must write first.
    pub(super) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Writes some of the remainder of a piece. Returns the number of bytes written.
    pub(super) fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let write = |rest: &[u8]| self.socket.poll_write(cx, &[io::IoSlice::new(rest)]);
        self.rest.take(write).map(|written| match written? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        })
    }

    /// Records whether hyper's latest output was accepted completely.
    pub(super) fn on_output(&self, is_whole: bool) {
        self.is_held_back.store(!is_whole, Ordering::Relaxed);
        if is_whole {
            self.progress().wake_reader();
        }
    }

    /// Returns whether the kernel has not accepted all output.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_held_back.load(Ordering::Relaxed) || self.has_rest()
    }

    /// Returns whether every request is answered and every response written.
    pub(super) fn is_answered(&self) -> bool {
        !self.progress().is_open() && !self.is_held_back()
    }
}

/// Bytes that one user of the socket leaves to the other. Mostly there are none, which is known without a lock.
#[derive(Debug, Default)]
struct Backlog {
    any: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    fn len(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            self.bytes.lock().len()
        }
    }

    fn append(&self, more: &[u8]) {
        if !more.is_empty() {
            self.bytes.lock().extend_from_slice(more);
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Removes as many bytes as `take` has taken from the beginning.
    fn take(&self, take: impl FnOnce(&[u8]) -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let mut bytes = self.bytes.lock();
        let taken = ready!(take(&bytes))?;
        bytes.drain(..taken);
        if bytes.is_empty() {
            *bytes = Vec::new();
            self.any.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(taken))
    }
}

#[cfg(test)]
impl SharedSocket {
    /// Returns a client's socket and the router's.
    pub(super) async fn pair() -> (tokio::net::TcpStream, Arc<Self>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = tokio::net::TcpStream::connect(address).await.unwrap();
        let permit = super::connections::Connections::new(1)
            .try_acquire(address.ip())
            .unwrap();
        let socket = Socket::plain(listener.accept().await.unwrap().0);
        (client, Arc::new(Self::new(socket, permit)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn bytes_read_ahead_are_taken_in_order_in_pieces_and_before_later_ones() {
        let (mut client, socket) = SharedSocket::pair().await;
        for sent in [b"ab", b"cd"] {
            client.write_all(sent).await.unwrap();
            assert!(poll_fn(|cx| socket.poll_read_ahead(cx)).await.unwrap());
        }
        assert_eq!(socket.bytes_ahead(), 4);
        client.write_all(b"ef").await.unwrap();
        for (expected, left) in [("abc", 1), ("d", 0), ("ef", 0)] {
            let mut memory = [0; 3];
            let mut buf = ReadBuf::new(&mut memory);
            poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap();
            assert_eq!((buf.filled(), socket.bytes_ahead()), (expected.as_bytes(), left));
        }
        drop(client);
        let more = poll_fn(|cx| socket.poll_read_ahead(cx)).await;
        assert!(!more.unwrap(), "the input has ended");
    }

    #[tokio::test]
    async fn a_response_is_answered_once_the_rest_of_its_last_piece_and_hypers_output_are_written() {
        let (mut client, socket) = SharedSocket::pair().await;
        let piece = vec![b'a'; 64 * 1024];
        let request = socket.progress().request_began();
        let mut sent = 0;
        while poll_fn(|cx| Poll::Ready(socket.write_piece(cx, &piece)))
            .await
            .unwrap()
        {
            sent += piece.len();
        }
        sent += piece.len();
        assert!(socket.has_rest() && socket.is_held_back());
        drop(request);
        assert!(!socket.is_answered(), "a rest is left");
        let writing = async {
            while socket.has_rest() {
                assert!(poll_fn(|cx| socket.poll_rest(cx)).await.unwrap() > 0);
            }
        };
        let mut received = vec![0; sent];
        tokio::join!(writing, async { client.read_exact(&mut received).await.unwrap() });
        assert!(received.iter().all(|byte| *byte == b'a') && socket.is_answered());
        for is_whole in [false, true] {
            socket.on_output(is_whole);
            assert_eq!(socket.is_answered(), is_whole);
        }
    }
}
