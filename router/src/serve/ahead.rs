//! What a client sends behind a request that is not answered yet.
//!
//! hyper reads no further while it holds bytes of another request. What the client sends on then stays in the system's
//! buffers, and once these are full the end of the connection stays with the client's own: nobody here would learn that it
//! has left. So these bytes are read and held until hyper asks for them, up to a bound. A client that sends more behind an
//! unanswered request loses its connection; RFC 9112, section 9.3.2, has clients pipeline little, and nothing that is not
//! idempotent.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::ReadBuf;

use super::events::Event;
use super::progress::Progress;
use super::socket::Socket;
use crate::unread::Unread;

/// Most bytes that are held of a connection.
const MOST_BYTES: usize = 64 * 1024;
/// Bytes that are read at once.
const READ_BYTES: usize = 8 * 1024;

/// Bytes that were read before hyper asked for them.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    any: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl Ahead {
    /// Gives the first of them to hyper. Returns whether there were any.
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

    /// Holds some more. Returns how many are held.
    fn hold(&self, more: &[u8]) -> usize {
        let mut bytes = self.bytes.lock();
        bytes.extend_from_slice(more);
        self.any.store(true, Ordering::Relaxed);
        bytes.len()
    }

    fn held(&self) -> usize {
        match self.any.load(Ordering::Relaxed) {
            true => self.bytes.lock().len(),
            false => 0,
        }
    }
}

/// Reads ahead of hyper, where hyper does not read.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) socket: Arc<Socket>,
    pub(super) progress: Arc<Progress>,
    pub(super) ahead: Arc<Ahead>,
    /// Room for what is held.
    pub(super) room: Unread,
}

impl Reader {
    /// Reads what there is behind an unanswered request, after hyper was polled. Ready if the connection is to end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        while self.progress.is_sent_more() {
            let mut memory = [MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut memory);
            let read = ready!(self.socket.poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                self.progress.client_closed();
                return Poll::Ready(Event::ClientLeft);
            }
            let held = self.ahead.hold(buf.filled());
            if held > MOST_BYTES || !self.room.resize(held) {
                return Poll::Ready(Event::SendsTooMuch);
            }
        }
        // Unless hyper has taken all, some are held without a request being open, until it asks.
        let _ = self.room.resize(self.ahead.held());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_ahead_is_taken_in_order_and_in_pieces() {
        let ahead = Ahead::default();
        let mut memory = [0; 3];
        let mut buf = ReadBuf::new(&mut memory);
        assert!(!ahead.take_into(&mut buf));
        assert_eq!((ahead.hold(b"ab"), ahead.hold(b"cd")), (2, 4));
        assert!(ahead.take_into(&mut buf));
        assert_eq!(buf.filled(), b"abc");
        buf.clear();
        assert!(ahead.take_into(&mut buf));
        assert_eq!((buf.filled(), ahead.held()), (&b"d"[..], 0));
        assert!(!ahead.take_into(&mut buf));
    }
}
