//! Pieces of a stream that go past hyper.
//!
//! A stream is a head, then pieces of a few bytes each for seconds, then an end. hyper does the head and the end. For each
//! piece between them it would look at the client's side, its own state and the body, twice each, which is more work than the
//! piece itself. So while a chunked answer of HTTP/1.1 waits for its next piece and nothing of what came before waits to be
//! written, it is its connection's task that asks for pieces and writes each as a chunk (RFC 9112, section 7.1). hyper has a
//! waker of its own and is polled only when that is rung: when the client sends or leaves.
//!
//! hyper rings it itself when it can go on, as when more of a body is there than it reads at a time. Then it is polled again at once: were
//! other connections to read theirs in between, the rest would find the processor's caches full of those.
//!
//! Whatever is not a plain piece that the socket takes at once is hyper's again: the last piece, trailers, an error, and a
//! client that reads slower than its answer comes ([`Outgoing`]).

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::task::coop;
use tokio::time::Instant;

use super::passage::Passage;
use super::socket::Socket;
use super::stalled::{Answers, Held};
use tailroute_http::bell::Bell;
use tailroute_http::body::Piece;

/// Room for a chunk's size and its line break.
const SIZE_BYTES: usize = 2 * size_of::<usize>() + 2;

/// Times that hyper is polled before other connections have their turn: for some megabytes of a body.
const MOST_POLLS: usize = 16;

thread_local! {
    /// Where pieces become chunks.
    static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a connection's two writers, hyper and [`Express`], know of each other.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// hyper has written what the system has not taken yet.
    held_back: AtomicBool,
    has_rest: AtomicBool,
    /// What the system has not taken of a piece. It goes before all that hyper writes.
    rest: Mutex<Vec<u8>>,
}

impl Outgoing {
    /// hyper has written, and it was taken whole or was not.
    pub(super) fn written(&self, whole: bool) {
        self.held_back.store(!whole, Ordering::Relaxed);
    }

    fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Relaxed) || self.has_rest.load(Ordering::Relaxed)
    }

    fn hold_rest(&self, rest: &[u8]) {
        self.rest.lock().extend_from_slice(rest);
        self.has_rest.store(true, Ordering::Relaxed);
    }

    /// Writes what is left of a piece; ready with how much of it was written, 0 once none is left.
    pub(super) fn poll_rest(&self, cx: &mut Context<'_>, socket: &Socket) -> Poll<io::Result<usize>> {
        if !self.has_rest.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(0));
        }
        let mut rest = self.rest.lock();
        let written = ready!(socket.poll_write(cx, &[io::IoSlice::new(&rest)]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        rest.drain(..written);
        if rest.is_empty() {
            self.has_rest.store(false, Ordering::Relaxed);
            *rest = Vec::new();
        }
        Poll::Ready(Ok(written))
    }
}

/// A connection with its way past hyper.
#[derive(Debug)]
pub(super) struct Express {
    socket: Arc<Socket>,
    outgoing: Arc<Outgoing>,
    answers: Arc<Answers>,
    /// What the rest is woken with.
    bell: Bell,
    /// The answer whose pieces go past hyper.
    flowing: Option<Arc<Mutex<Held>>>,
}

impl Express {
    /// None flows yet.
    pub(super) fn new(socket: Arc<Socket>, outgoing: Arc<Outgoing>, answers: Arc<Answers>) -> Self {
        Self {
            socket,
            outgoing,
            answers,
            bell: Bell::default(),
            flowing: None,
        }
    }

    /// Serves the connection: its pieces here, all else by hyper, which `rest` polls with all that is as rare.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut rest: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        for _ in 0..MOST_POLLS {
            let is_left = self.flowing.is_some() && !self.pass_on(cx);
            if is_left {
                self.flowing = None;
            }
            if !self.bell.has_rung(cx) && !is_left {
                return Poll::Pending;
            }
            let happened = rest(&mut Context::from_waker(self.bell.waker()));
            if happened.is_ready() {
                return happened;
            }
            self.begin();
            // Without any left, whatever hyper asks for says that it can go on, and cannot.
            if !coop::has_budget_remaining() {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The rest has to be polled, whatever flows.
    pub(super) fn ring(&self) {
        self.bell.waker().wake_by_ref();
    }

    /// hyper has been polled: takes the answer that it waits for, if nothing else is to be written before its next piece.
    fn begin(&mut self) {
        // What hyper has all of is dropped with it: it has been written, or waits for the client within hyper.
        if let Some(answer) = self.answers.take_handed().offer
            && !self.outgoing.is_held_back()
        {
            answer.lock().passage = Passage::Express;
            self.flowing = Some(answer);
        }
    }

    /// Hands on all pieces that are there. Returns whether the answer still flows; what cannot be handed on is left to hyper.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(answer) = &self.flowing else {
            return false;
        };
        let (mut held, mut chunk) = (answer.lock(), CHUNK.take());
        let left = loop {
            let Some(body) = &mut held.body else {
                break Some(Passage::Offered);
            };
            // A body that comes without a socket would never let go of the task otherwise.
            let Poll::Ready(budget) = coop::poll_proceed(cx) else {
                break None;
            };
            chunk.clear();
            chunk.resize(SIZE_BYTES, 0);
            let Poll::Ready(piece) = body.poll_piece(cx, &mut chunk) else {
                break None;
            };
            budget.made_progress();
            if let Piece::Given(given) = piece {
                break Some(Passage::Left(given));
            }
            match self.write(cx, &mut chunk) {
                Ok(true) => {}
                Ok(false) => {
                    held.handed_out = Some(Instant::now());
                    break Some(Passage::Offered);
                }
                Err(error) => break Some(Passage::Left(Some(Err(error.into())))),
            }
        };
        CHUNK.set(chunk);
        let flows = left.is_none();
        if let Some(passage) = left {
            held.passage = passage;
        }
        flows
    }

    /// Writes a piece, for whose size there is room before it, as a chunk. Returns whether the system took all of it; what it
    /// did not take is held.
    fn write(&self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> io::Result<bool> {
        let bytes = chunk.len() - SIZE_BYTES;
        if bytes == 0 {
            // A chunk of nothing would be the end.
            return Ok(true);
        }
        let begin = put_size(&mut chunk[..SIZE_BYTES], bytes);
        chunk.extend_from_slice(b"\r\n");
        let chunk = &chunk[begin..];
        match self.socket.poll_write(cx, &[io::IoSlice::new(chunk)]) {
            Poll::Ready(written) => {
                let written = written?;
                if written < chunk.len() {
                    self.outgoing.hold_rest(&chunk[written..]);
                    return Ok(false);
                }
            }
            Poll::Pending => {
                self.outgoing.hold_rest(chunk);
                return Ok(false);
            }
        }
        match self.socket.poll_flush(cx) {
            Poll::Ready(flushed) => flushed.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }
}

/// Puts a chunk's size and its line break at the end of this room. Returns where they begin. By hand, as each token has one.
fn put_size(room: &mut [u8], bytes: usize) -> usize {
    let mut begin = room.len() - 2;
    room[begin..].copy_from_slice(b"\r\n");
    let mut left = bytes;
    loop {
        begin -= 1;
        room[begin] = b"0123456789ABCDEF"[left & 15];
        left >>= 4;
        if left == 0 {
            return begin;
        }
    }
}

#[cfg(test)]
mod tests;
