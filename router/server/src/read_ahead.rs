//! Bytes that a client pipelines behind an unanswered request.
//!
//! hyper stops reading while its buffer holds bytes of a later request. Once the kernel's receive buffer is full too,
//! the client's FIN cannot arrive. So the connection's task reads these bytes itself and keeps them for hyper. A client
//! that pipelines more than [`MAX_BYTES`] loses its connection, as RFC 9112, section 9.3.2, permits.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::ReadBuf;

use super::events::ConnectionEvent;
use super::progress::Progress;
use super::socket::Socket;
use tailroute_http::unread::Unread;

/// Largest number of bytes buffered per connection.
const MAX_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 8 * 1024;

#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    any: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl ReadAhead {
    /// Moves buffered bytes into `buf`. Returns whether there were any.
    pub(super) fn take_into(&self, buf: &mut ReadBuf<'_>) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut bytes = self.bytes.lock();
        let taken = bytes.len().min(buf.remaining());
        buf.put_slice(&bytes[..taken]);
        bytes.drain(..taken);
        if bytes.is_empty() {
            *bytes = Vec::new();
            self.any.store(false, Ordering::Relaxed);
        }
        true
    }

    /// Appends bytes. Returns the number of buffered bytes.
    fn append(&self, more: &[u8]) -> usize {
        let mut bytes = self.bytes.lock();
        bytes.extend_from_slice(more);
        self.any.store(true, Ordering::Relaxed);
        bytes.len()
    }

    fn len(&self) -> usize {
        match self.any.load(Ordering::Relaxed) {
            true => self.bytes.lock().len(),
            false => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct ConnectionReader {
    pub(super) socket: Arc<Socket>,
    pub(super) progress: Arc<Progress>,
    pub(super) ahead: Arc<ReadAhead>,
    /// Reservation of the buffered bytes within `limits.max_unread_bytes`.
    pub(super) room: Unread,
}

impl ConnectionReader {
    /// Reads pipelined bytes. Must be polled after hyper, by the same task. Ready if the connection has to end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEvent> {
        while self.progress.has_pipelined() {
            let mut memory = [MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut memory);
            let read = ready!(self.socket.poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                self.progress.client_closed();
                return Poll::Ready(ConnectionEvent::ClientLeft);
            }
            let held = self.ahead.append(buf.filled());
            if held > MAX_BYTES || !self.room.resize(held) {
                return Poll::Ready(ConnectionEvent::PipelinesTooMuch);
            }
        }
        // hyper may have taken some bytes in the meantime.
        let _ = self.room.resize(self.ahead.len());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_ahead_are_taken_in_order_and_in_pieces() {
        let ahead = ReadAhead::default();
        let mut memory = [0; 3];
        let mut buf = ReadBuf::new(&mut memory);
        assert!(!ahead.take_into(&mut buf));
        assert_eq!((ahead.append(b"ab"), ahead.append(b"cd")), (2, 4));
        assert!(ahead.take_into(&mut buf));
        assert_eq!(buf.filled(), b"abc");
        buf.clear();
        assert!(ahead.take_into(&mut buf));
        assert_eq!((buf.filled(), ahead.len()), (&b"d"[..], 0));
        assert!(!ahead.take_into(&mut buf));
    }
}
