//! The fast path: writes pieces of a streamed response without hyper.
//!
//! hyper handles the head and the end of a stream. For each piece between them it would check the client's side, its
//! own state and the body, twice each, which is more work than the piece itself. So while a chunked HTTP/1.1 response
//! waits for its next piece and no earlier output is pending, the connection's task polls for pieces itself and writes
//! each as a chunk (RFC 9112, section 7.1). hyper gets its own waker and is polled only after a wake-up: when
//! the client sends or disconnects, or when hyper wakes itself because it can go on. In the last case it is polled at
//! once: if other connections ran first, the processor's caches would lose the body.
//!
//! Everything but a plain piece that the socket accepts at once is left to hyper: the last piece, trailers, an error,
//! and the remainder of a piece for a client that reads more slowly than its response arrives
//! ([`SharedSocket::write_piece`]).

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::task::coop;
use tokio::time::Instant;

use super::answers::{Answers, FrameOwner, SharedBody};
use super::shared_socket::SharedSocket;
use tailroute_http::body::BodyPiece;
use tailroute_http::rare_waker::RareWaker;

/// Bytes reserved for a chunk's size and its line break.
const SIZE_BYTES: usize = 2 * size_of::<usize>() + 2;

/// Largest number of consecutive polls of hyper before other connections get a turn; enough for some megabytes of a
/// body.
const MOST_POLLS: usize = 16;

thread_local! {
    static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(super) struct FastPath<'a> {
    shared: &'a SharedSocket,
    answers: &'a Answers,
    waker: RareWaker,
    flowing: Option<Arc<Mutex<SharedBody>>>,
}

impl<'a> FastPath<'a> {
    pub(super) fn new(shared: &'a SharedSocket, answers: &'a Answers) -> Self {
        Self {
            shared,
            answers,
            waker: RareWaker::default(),
            flowing: None,
        }
    }

    /// Serves the connection: passes on pieces itself, and calls `rest`, which polls hyper and the rare events, for
    /// everything else.
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
            if !self.waker.was_woken(cx) && !is_left {
                return Poll::Pending;
            }
            let happened = rest(&mut Context::from_waker(self.waker.waker()));
            if happened.is_ready() {
                return happened;
            }
            self.begin();
            // Without budget hyper's sockets wake the task at once but make no progress.
            if !coop::has_budget_remaining() {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Makes the next poll include hyper and the rare events.
    pub(super) fn wake(&self) {
        self.waker.waker().wake_by_ref();
    }

    /// Takes over the response that hyper waits for, if no output is pending. Called after each poll of hyper.
    fn begin(&mut self) {
        // Bodies that hyper has finished are dropped with the value: their data is written or buffered in hyper.
        if let Some(answer) = self.answers.take_results().offer
            && !self.shared.is_held_back()
        {
            answer.lock().owner = FrameOwner::FastPath;
            self.flowing = Some(answer);
        }
    }

    /// Writes all available pieces. Returns whether the response stays on the fast path; otherwise hyper continues.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(answer) = &self.flowing else {
            return false;
        };
        let (mut response, mut chunk) = (answer.lock(), CHUNK.take());
        let left = loop {
            let Some(body) = &mut response.body else {
                break Some(FrameOwner::Offered);
            };
            // A body that needs no socket would otherwise never yield the task.
            let Poll::Ready(budget) = coop::poll_proceed(cx) else {
                break None;
            };
            chunk.clear();
            chunk.resize(SIZE_BYTES, 0);
            let Poll::Ready(piece) = body.poll_piece(cx, &mut chunk) else {
                break None;
            };
            budget.made_progress();
            if let BodyPiece::Frame(given) = piece {
                break Some(FrameOwner::Left(given));
            }
            match self.write(cx, &mut chunk) {
                Ok(true) => {}
                Ok(false) => {
                    response.taken_at = Some(Instant::now());
                    break Some(FrameOwner::Offered);
                }
                Err(error) => break Some(FrameOwner::Left(Some(Err(error.into())))),
            }
        };
        CHUNK.set(chunk);
        let flows = left.is_none();
        if let Some(owner) = left {
            response.owner = owner;
        }
        flows
    }

    /// Writes a piece as a chunk; `chunk` begins with room for the size. Returns whether the kernel accepted all of it.
    fn write(&self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> io::Result<bool> {
        let bytes = chunk.len() - SIZE_BYTES;
        if bytes == 0 {
            // An empty chunk would end the body.
            return Ok(true);
        }
        let begin = put_size(&mut chunk[..SIZE_BYTES], bytes);
        chunk.extend_from_slice(b"\r\n");
        self.shared.write_piece(cx, &chunk[begin..])
    }
}

/// Writes a chunk's size and line break at the end of `room`, by hand because each token has one. Returns the start.
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
