//! Writes a request and reads the head of its response.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::{Response, Version};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

use super::answer::ResponseBody;
use super::decoder::BodyFraming;
use super::head::{Reading, ResponseHead};
use super::{Origin, SCRATCH, invalid};

/// Failure of an exchange, which brought no response.
pub(super) struct Failed {
    /// Whether the worker may have seen part of the request.
    pub(super) sent: bool,
    pub(super) error: io::Error,
}

struct UpstreamExchange<'a> {
    stream: &'a mut TcpStream,
    head: &'a [u8],
    body: &'a [u8],
    sent: bool,
    /// Error of a failed write. A response may still come, for example an early rejection of the body.
    broken: Option<io::Error>,
    answer: Reading,
}

pub(super) async fn exchange(
    origin: &Arc<Origin>,
    mut stream: TcpStream,
    head: &[u8],
    body: &Bytes,
    is_head: bool,
) -> Result<Response<ResponseBody>, Failed> {
    let mut exchange = UpstreamExchange {
        stream: &mut stream,
        head,
        body,
        sent: false,
        broken: None,
        answer: Reading::default(),
    };
    let answered = std::future::poll_fn(|cx| exchange.poll(cx)).await;
    let (sent, whole) = (exchange.sent, exchange.is_written());
    match answered {
        Ok((head, rest)) => {
            let reusable = head.keeps_alive && whole;
            // The answer to HEAD has no body, whatever its head says.
            let framing = if is_head {
                BodyFraming::Length(0)
            } else {
                head.framing
            };
            let answer = ResponseBody::new(Arc::clone(origin), stream, framing, reusable, rest);
            let mut response = Response::new(answer);
            *response.status_mut() = head.status;
            *response.headers_mut() = head.headers;
            *response.version_mut() = Version::HTTP_11;
            Ok(response)
        }
        Err(error) => Err(Failed { sent, error }),
    }
}

impl UpstreamExchange<'_> {
    fn is_written(&self) -> bool {
        self.head.is_empty() && self.body.is_empty() && self.broken.is_none()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(ResponseHead, Bytes)>> {
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            if !self.sent {
                return Poll::Ready(Err(error));
            }
            self.broken = Some(error);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                let mut buffer = ReadBuf::new(scratch);
                ready!(Pin::new(&mut *self.stream).poll_read(cx, &mut buffer))?;
                let filled = buffer.filled();
                if filled.is_empty() {
                    let end = || io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(self.broken.take().unwrap_or_else(end)));
                }
                if let Some(answer) = self.answer.take(filled).map_err(invalid)? {
                    return Poll::Ready(Ok(answer));
                }
            }
        })
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !(self.head.is_empty() && self.body.is_empty()) && self.broken.is_none() {
            let stream = Pin::new(&mut *self.stream);
            let written = if self.body.is_empty() {
                stream.poll_write(cx, self.head)
            } else {
                stream.poll_write_vectored(cx, &[IoSlice::new(self.head), IoSlice::new(self.body)])
            };
            let mut written = ready!(written)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent = true;
            let of_head = written.min(self.head.len());
            self.head.advance(of_head);
            written -= of_head;
            self.body.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}
