//! The body of a worker's response.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;

use super::decoder::{BodyDecoder, BodyFraming};
use super::{Origin, SCRATCH, invalid};
use crate::body::{BodyError, BodyPiece, Pieces, PolledFrame, poll_piece_of};

/// Reads up to this size are decoded into a thread-local buffer: copying an exact size out of it takes one
/// allocation, a vector with spare capacity would take two.
const SMALL_BYTES: usize = 4096;

thread_local! {
    static SMALL: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(SMALL_BYTES));
}

/// The body of a response. Dropping it before its end closes the connection.
#[derive(Debug)]
pub struct ResponseBody(Inner);

#[derive(Debug)]
enum Inner {
    Own(Box<Own>),
    Hyper(Incoming),
}

#[derive(Debug)]
struct Own {
    origin: Arc<Origin>,
    /// Connection; `None` once the body has ended or failed.
    stream: Option<TcpStream>,
    decoder: BodyDecoder,
    reusable: bool,
    /// Bytes of the body that were read together with the head.
    rest: Bytes,
    trailers: Option<HeaderMap>,
}

impl From<Incoming> for ResponseBody {
    fn from(incoming: Incoming) -> Self {
        Self(Inner::Hyper(incoming))
    }
}

impl ResponseBody {
    pub(super) fn new(
        origin: Arc<Origin>,
        stream: TcpStream,
        framing: BodyFraming,
        reusable: bool,
        rest: Bytes,
    ) -> Self {
        let mut own = Own {
            origin,
            stream: Some(stream),
            decoder: BodyDecoder::new(framing),
            reusable,
            rest,
            trailers: None,
        };
        if own.decoder.is_done() {
            let excess = !own.rest.is_empty();
            own.ended(excess);
        }
        Self(Inner::Own(Box::new(own)))
    }
}

impl Own {
    /// Ends the body. With bytes after it (`excess`) the connection is not reused.
    fn ended(&mut self, excess: bool) {
        self.trailers = self.decoder.trailers();
        self.rest = Bytes::new();
        if let Some(stream) = self.stream.take()
            && self.reusable
            && !excess
        {
            self.origin.keep(stream);
        }
    }

    fn decode(&mut self, wire: &[u8]) -> io::Result<Bytes> {
        if wire.len() > SMALL_BYTES {
            let mut body = Vec::with_capacity(wire.len());
            self.take(wire, &mut body)?;
            return Ok(body.into());
        }
        SMALL.with_borrow_mut(|body| {
            body.clear();
            self.take(wire, body)?;
            Ok(Bytes::copy_from_slice(body))
        })
    }

    fn take(&mut self, wire: &[u8], body: &mut Vec<u8>) -> io::Result<()> {
        let taken = self.decoder.take(wire, body).map_err(invalid)?;
        if self.decoder.is_done() {
            self.ended(taken < wire.len());
        }
        Ok(())
    }

    /// Polls for the next data, which `take` extracts from the bytes read; `None` at the end of the data, which
    /// trailers may follow.
    fn poll_wire<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Self, &[u8]) -> io::Result<Option<T>>,
    ) -> Poll<io::Result<Option<T>>> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            if let Some(taken) = take(self, &rest)? {
                return Poll::Ready(Ok(Some(taken)));
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                let Some(stream) = &mut self.stream else {
                    return Poll::Ready(Ok(None));
                };
                let mut buffer = ReadBuf::new(scratch);
                ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
                let wire = buffer.filled();
                if wire.is_empty() {
                    self.stream = None;
                    if !self.decoder.close() {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                    return Poll::Ready(Ok(None));
                }
                if let Some(taken) = take(self, wire)? {
                    return Poll::Ready(Ok(Some(taken)));
                }
            }
        })
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let data = self.poll_wire(cx, |own, wire| {
            let data = own.decode(wire)?;
            Ok((!data.is_empty()).then_some(data))
        });
        self.poll_given(data.map_ok(|data| data.map(Frame::data)))
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece> {
        let before = out.len();
        let added = self.poll_wire(cx, |own, wire| {
            own.take(wire, out)?;
            Ok((out.len() > before).then_some(()))
        });
        let given = match added {
            Poll::Ready(Ok(Some(()))) if !self.is_over() => return Poll::Ready(BodyPiece::Added),
            added => {
                added.map_ok(|added| added.map(|()| Frame::data(Bytes::copy_from_slice(&out[before..]))))
            }
        };
        out.truncate(before);
        self.poll_given(given).map(BodyPiece::Frame)
    }

    /// Returns the frame that was read, or the trailers after the last one.
    fn poll_given(&mut self, came: Poll<io::Result<Option<Frame<Bytes>>>>) -> Poll<PolledFrame> {
        Poll::Ready(match ready!(came) {
            Ok(Some(frame)) => Some(Ok(frame)),
            Ok(None) => self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => {
                self.stream = None;
                Some(Err(error.into()))
            }
        })
    }

    fn is_over(&self) -> bool {
        self.decoder.is_done() && self.trailers.is_none()
    }
}

impl Pieces for ResponseBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece> {
        match &mut self.0 {
            Inner::Hyper(incoming) => poll_piece_of(incoming, cx, out),
            Inner::Own(own) => own.poll_piece(cx, out),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        match &mut self.get_mut().0 {
            Inner::Hyper(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Into::into),
            Inner::Own(own) => own.poll_data(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Own(own) => own.is_over(),
            Inner::Hyper(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Own(own) => own
                .decoder
                .left()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            Inner::Hyper(incoming) => incoming.size_hint(),
        }
    }
}
