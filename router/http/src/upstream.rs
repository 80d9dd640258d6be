//! An HTTP/1.1 client for workers that runs within the task of the client's connection.
//!
//! The future of the client's own request reads the worker's socket: one wake-up per read, one frame per read however
//! many chunks it contains, no buffer for an idle stream. With hyper's pooled client a token passes two tasks and a
//! channel, and each chunk is a frame. docs/performance.md has the measurements.
//!
//! The client implements the part of HTTP/1.1 that engines use with a sidecar: complete request bodies, plain text,
//! one request at a time per connection. Everything else (https, upgrades, streamed request bodies, control calls) goes
//! through hyper's, behind [`UpstreamClient`], whose responses are converted to the same type.
//!
//! - A request announces the body that is sent with it (`outgoing`), and a connection is used again only after an
//!   exchange that was complete both ways: the next request then begins where the worker expects one.
//! - A response with ambiguous framing is rejected, and a connection with any framing doubt is not reused.
//! - A connection that the worker has closed is detected before a request is written, if the kernel has the close.
//! - Dropping the response, or the future that waits for it, closes the connection. That tells the worker to abort.

mod answer;
mod client;
mod decoder;
mod exchange;
mod head;
mod line;
mod outgoing;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

pub use self::answer::ResponseBody;
pub use self::client::UpstreamClient;
pub use self::head::MAX_HEAD_BYTES;
pub use self::outgoing::LastOnConnection;

use self::exchange::Failed;

const READ_BYTES: usize = 64 * 1024;
/// Size in bytes of the longest body that is written together with its head: copying it costs less than a vectored
/// write.
const SMALL_BODY_BYTES: usize = 4096;
/// Largest number of idle connections per worker.
const MAX_IDLE: usize = 1024;

thread_local! {
    /// Buffer of every read. Data is copied out of it, so that an idle stream holds no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be established.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// The connection was lost before the first byte was written.
    #[error("the connection was lost before the request was written")]
    Unsent(#[source] io::Error),
    /// The connection was lost after the first byte was written, or the peer sent no valid response.
    #[error("no answer")]
    Lost(#[source] io::Error),
    /// hyper's client failed.
    #[error(transparent)]
    Hyper(#[from] legacy::Error),
}

impl Error {
    /// Returns whether the connection could not be established.
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Hyper(error) => error.is_connect(),
            Self::Unsent(_) | Self::Lost(_) => false,
        }
    }
}

/// Time for which idle connections are kept: shorter than the five seconds of uvicorn, which serves vLLM and SGLang, so
/// that a worker does not close a connection just when it is reused.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// Address of a worker and the idle connections to it.
#[derive(Debug)]
pub struct Origin {
    host: String,
    port: u16,
    authority: HeaderValue,
    connect_timeout: Duration,
    /// Idle time after which a connection is not reused, because the worker is likely to close it.
    idle_timeout: Duration,
    /// Idle connections, the longest idle first.
    idle: Mutex<VecDeque<IdleConnection>>,
}

#[derive(Debug)]
struct IdleConnection {
    stream: TcpStream,
    since: Instant,
}

/// A response as far as it could be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedResponse {
    pub status: StatusCode,
    /// Header fields, without framing fields that do not apply.
    pub headers: HeaderMap,
    /// Decoded part of the body.
    pub body: Vec<u8>,
    /// Trailers of a complete body, if there are any.
    pub trailers: Option<HeaderMap>,
    /// Whether the body is complete.
    pub is_whole: bool,
    /// Number of bytes after the end of the body.
    pub behind: usize,
}

/// Decodes a response from the bytes of a connection that then closes; `None` if the head is incomplete. Takes the same
/// steps as [`Origin::send`], without a socket. Fails if the bytes are no response, or the framing is ambiguous.
pub fn decode<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> Result<Option<DecodedResponse>, io::Error> {
    let mut reading = head::Reading::default();
    let (head, first) = loop {
        let Some(piece) = pieces.next() else {
            return Ok(None);
        };
        if let Some(head) = reading.take(piece).map_err(invalid)? {
            break head;
        }
    };
    let mut decoder = decoder::BodyDecoder::new(head.framing);
    let (mut body, mut behind) = (Vec::new(), 0);
    let mut take = |piece: &[u8]| -> io::Result<()> {
        behind += piece.len() - decoder.take(piece, &mut body).map_err(invalid)?;
        Ok(())
    };
    take(&first)?;
    pieces.try_for_each(take)?;
    let is_whole = decoder.close();
    Ok(Some(DecodedResponse {
        status: head.status,
        headers: head.headers,
        body,
        trailers: decoder.trailers(),
        is_whole,
        behind,
    }))
}

/// A pending response. Dropping it closes the connection.
pub struct PendingResponse(Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Error>> + Send>>);

impl Future for PendingResponse {
    type Output = Result<Response<ResponseBody>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingResponse")
    }
}

impl Origin {
    /// Returns the origin of a worker at `url`; `None` if the URL is not plain `http`.
    pub fn new(url: &Uri, connect_timeout: Duration, idle_timeout: Duration) -> Option<Arc<Self>> {
        if url.scheme_str() != Some("http") {
            return None;
        }
        let authority = url.authority()?;
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some(Arc::new(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: outgoing::host(url)?,
            connect_timeout,
            idle_timeout,
            idle: Mutex::default(),
        }))
    }

    /// Sends a request, on an idle connection if there is one.
    #[must_use]
    pub fn send(self: &Arc<Self>, request: Request<Bytes>) -> PendingResponse {
        let origin = Arc::clone(self);
        PendingResponse(Box::pin(async move {
            let is_head = *request.method() == Method::HEAD;
            let mut head = outgoing::write(&request, &origin.authority);
            let mut body = request.into_body();
            if body.len() <= SMALL_BODY_BYTES {
                head.extend_from_slice(&std::mem::take(&mut body));
            }
            loop {
                let kept = origin.take();
                let is_kept = kept.is_some();
                let stream = match kept {
                    Some(stream) => stream,
                    None => origin.connect().await.map_err(Error::Connect)?,
                };
                match exchange::exchange(&origin, stream, &head, &body, is_head).await {
                    Ok(response) => return Ok(response),
                    // The idle connection was closed and the worker has seen nothing of this request.
                    Err(Failed { sent: false, .. }) if is_kept => {}
                    Err(Failed { sent: false, error }) => return Err(Error::Unsent(error)),
                    Err(Failed { sent: true, error }) => return Err(Error::Lost(error)),
                }
            }
        }))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = timeout(self.connect_timeout, connect)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns the most recently used connection that is still open.
    fn take(&self) -> Option<TcpStream> {
        let mut idle = self.idle.lock();
        self.drop_old(&mut idle);
        while let Some(IdleConnection { stream, .. }) = idle.pop_back() {
            // `try_read` makes a system call only after the kernel has signalled readability: the worker's close, or
            // unsolicited bytes.
            let quiet = stream.try_read(&mut [0; 1]);
            if quiet.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return Some(stream);
            }
        }
        None
    }

    /// Returns a connection without a request in progress to the pool.
    fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.lock();
        self.drop_old(&mut idle);
        if idle.len() < MAX_IDLE {
            idle.push_back(IdleConnection {
                stream,
                since: Instant::now(),
            });
        }
    }

    fn drop_old(&self, idle: &mut VecDeque<IdleConnection>) {
        let now = Instant::now();
        while idle
            .front()
            .is_some_and(|first| now - first.since > self.idle_timeout)
        {
            idle.pop_front();
        }
    }

    /// Closes connections that have been idle for too long. Requests do so too; without any, this has to be called
    /// periodically.
    pub fn tidy(&self) {
        self.drop_old(&mut self.idle.lock());
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
