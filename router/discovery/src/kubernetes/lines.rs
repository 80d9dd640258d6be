//! The body of a watch, split into bounded lines.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::refusal::Refusal;
use super::values;

/// Maximum length of an event in bytes; etcd objects have at most 1.5 MiB.
const MAX_EVENT_BYTES: usize = 8 << 20;
const MAX_EVENT_VALUES: usize = 64 << 10;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Forwards complete lines of a body until it ends, breaks or exceeds the deadline. A partial last line is dropped.
pub(super) struct LineBody {
    body: Incoming,
    partial: BytesMut,
    deadline: Pin<Box<Sleep>>,
    heard: Box<dyn Fn() + Send>,
    ended: Arc<AtomicBool>,
}

impl LineBody {
    pub(super) fn new(
        body: Incoming,
        deadline: Instant,
        heard: impl Fn() + Send + 'static,
        ended: Arc<AtomicBool>,
    ) -> Self {
        Self {
            body,
            partial: BytesMut::new(),
            deadline: Box::pin(tokio::time::sleep_until(deadline)),
            heard: Box::new(heard),
            ended,
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<Option<Bytes>, Refusal> {
        self.partial.extend_from_slice(piece);
        let from = self.partial.len() - piece.len();
        let whole = memchr::memrchr(b'\n', &self.partial[from..]).map(|at| from + at + 1);
        let lines = whole.map(|length| self.partial.split_to(length).freeze());
        if self.partial.len() > MAX_EVENT_BYTES {
            return Err(out_of_bounds(MAX_EVENT_BYTES, "bytes"));
        }
        for line in lines.iter().flat_map(|lines| lines.split(|byte| *byte == b'\n')) {
            if line.len() > MAX_EVENT_BYTES {
                return Err(out_of_bounds(MAX_EVENT_BYTES, "bytes"));
            }
            if line.len() > MAX_EVENT_VALUES && values(line) > MAX_EVENT_VALUES {
                return Err(out_of_bounds(MAX_EVENT_VALUES, "values"));
            }
        }
        Ok(lines)
    }
}

fn out_of_bounds(most: usize, of: &str) -> Refusal {
    Refusal::OutOfBounds(format!("an event of more than {most} {of}"))
}

impl Body for LineBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.deadline.as_mut().poll(cx).is_ready() {
                break;
            }
            let Some(Ok(frame)) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                break;
            };
            let Ok(piece) = frame.into_data() else { continue };
            match self.take(&piece) {
                Ok(None) => {}
                Ok(Some(lines)) => {
                    (self.heard)();
                    return Poll::Ready(Some(Ok(Frame::data(lines))));
                }
                Err(refusal) => return Poll::Ready(Some(Err(refusal.into()))),
            }
        }
        self.ended.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }
}
