//! Turns to workers and their answers back, over HTTP/1.1, within the task of the client's connection.
//!
//! A token is worth some microseconds of the router's time, and most of those are the system's: one read, one write, one
//! wake-up. hyper's pooled client adds a task per connection, so that a token passes two tasks and a channel between them,
//! and a frame per chunk of the wire, which is per token. Here the future of the client's own request reads the worker's
//! socket itself: one wake-up per read, one frame per read however many chunks are in it, no memory for a stream that is
//! silent. What that gains is in docs/performance.md.
//!
//! What is spoken is the part of HTTP/1.1 that an engine speaks to a sidecar: requests whose body is here as a whole, in
//! plain text, answered one at a time. Everything else (https, upgrades, bodies that stream in) goes through hyper's
//! client, whose answers have the same type here.
//!
//! - An answer that can be read in two ways is refused, and a connection on which there was any doubt is not used again.
//! - A connection that the worker has closed meanwhile is noticed before anything is written on it, if the system knows.
//! - Dropping the answer, or the future that waits for it, closes the connection. That is how a worker learns that nobody
//!   listens any more.

mod answer;
mod decoder;
mod exchange;
mod head;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

pub use self::head::MAX_HEAD_BYTES;

pub use self::answer::Answer;
use self::exchange::Failed;

/// What is read at once.
const READ_BYTES: usize = 64 * 1024;
/// A body of at most so much is written together with its head: to copy it costs less than the system takes for a list of two.
const SMALL_BODY_BYTES: usize = 4096;
/// Idle connections that are kept to a worker.
const MAX_IDLE: usize = 1024;

thread_local! {
    /// Where every read goes first: what is kept of it is copied out, so that a silent stream holds no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Why a request brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There was no connection to send it on.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// The connection was lost before the first byte was written.
    #[error("the connection was lost before the request was written")]
    Unsent(#[source] io::Error),
    /// The connection was lost after that, or what came was no answer.
    #[error("no answer")]
    Lost(#[source] io::Error),
    /// hyper's client failed.
    #[error(transparent)]
    Hyper(#[from] legacy::Error),
}

impl Error {
    /// Whether no connection came up.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Hyper(error) => error.is_connect(),
            Self::Unsent(_) | Self::Lost(_) => false,
        }
    }
}

/// Idle connections are given up before the worker does so, which would be in the moment when one is used again: uvicorn,
/// which serves vLLM and SGLang, closes them after five seconds.
pub const POOL_IDLE: Duration = Duration::from_secs(4);

/// Where a worker is, and the connections to it that nobody uses at the moment.
#[derive(Debug)]
pub struct Origin {
    host: String,
    port: u16,
    authority: HeaderValue,
    connect_timeout: Duration,
    /// A connection that has been idle for longer is not used again: before the worker is likely to close it.
    idle_timeout: Duration,
    /// The longest idle first.
    idle: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    since: Instant,
}

/// An answer as far as it was read off the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The status.
    pub status: StatusCode,
    /// The header fields, which say nothing of the body's end that does not hold.
    pub headers: HeaderMap,
    /// What has come of the body.
    pub body: Vec<u8>,
    /// Its trailers.
    pub trailers: Option<HeaderMap>,
    /// The body has ended.
    pub is_whole: bool,
    /// Bytes behind it, which are no answer to anything.
    pub behind: usize,
}

/// Reads an answer off a connection that gives these pieces and then ends; `None` if its head did not come. By the same steps
/// as [`Origin::send`] does, without a socket.
///
/// # Errors
/// If it is no answer, or can be read in two ways.
pub fn decode<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> Result<Option<Decoded>, io::Error> {
    let mut reading = head::Reading::default();
    let (head, first) = loop {
        let Some(piece) = pieces.next() else {
            return Ok(None);
        };
        if let Some(head) = reading.take(piece).map_err(invalid)? {
            break head;
        }
    };
    let mut decoder = decoder::Decoder::new(head.framing);
    let (mut body, mut behind) = (Vec::new(), 0);
    let mut take = |piece: &[u8]| -> io::Result<()> {
        behind += piece.len() - decoder.take(piece, &mut body).map_err(invalid)?;
        Ok(())
    };
    take(&first)?;
    pieces.try_for_each(take)?;
    let is_whole = decoder.close();
    Ok(Some(Decoded {
        status: head.status,
        headers: head.headers,
        body,
        trailers: decoder.trailers(),
        is_whole,
        behind,
    }))
}

/// An answer of hyper's client, if its head can be read in one way only; its length is then the body's.
///
/// # Errors
/// If it can be read in several ways.
pub fn vetted(response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    head::vetted(response).map_err(|error| Error::Lost(invalid(error)))
}

/// An answer that is waited for. Dropping it closes the connection.
pub struct Reply(Pin<Box<dyn Future<Output = Result<Response<Answer>, Error>> + Send>>);

impl Future for Reply {
    type Output = Result<Response<Answer>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}

impl Reply {
    /// An answer that comes through hyper's client.
    #[must_use]
    pub fn hyper(reply: legacy::ResponseFuture) -> Self {
        Self(Box::pin(
            async move { Ok(vetted(reply.await?)?.map(Answer::from)) },
        ))
    }
}

impl Origin {
    /// The origin of a worker at `url`; `None` if it cannot be spoken to in plain text.
    #[must_use]
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
        // A name and a password in it, if any, are no part of the host.
        let (_, named) = authority
            .as_str()
            .rsplit_once('@')
            .unwrap_or(("", authority.as_str()));
        Some(Arc::new(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(named).ok()?,
            connect_timeout,
            idle_timeout,
            idle: Mutex::default(),
        }))
    }

    /// Sends a request, on a connection that is free if there is one.
    #[must_use]
    pub fn send(self: &Arc<Self>, request: Request<Bytes>) -> Reply {
        let origin = Arc::clone(self);
        Reply(Box::pin(async move {
            let mut head = head::write(&request, &origin.authority);
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
                match exchange::exchange(&origin, stream, &head, &body).await {
                    Ok(response) => return Ok(response),
                    // It had been closed, and the worker has seen nothing of this.
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

    /// The connection that was used last, if it is still good.
    fn take(&self) -> Option<TcpStream> {
        let mut idle = self.idle.lock();
        self.drop_old(&mut idle);
        while let Some(Idle { stream, .. }) = idle.pop_back() {
            // Without a call to the system unless it has said that there is something to read: the worker's goodbye, or
            // bytes that nobody asked for.
            let quiet = stream.try_read(&mut [0; 1]);
            if quiet.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return Some(stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way.
    fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.lock();
        self.drop_old(&mut idle);
        if idle.len() < MAX_IDLE {
            idle.push_back(Idle {
                stream,
                since: Instant::now(),
            });
        }
    }

    fn drop_old(&self, idle: &mut VecDeque<Idle>) {
        let now = Instant::now();
        while idle
            .front()
            .is_some_and(|first| now - first.since > self.idle_timeout)
        {
            idle.pop_front();
        }
    }

    /// Closes connections that have been idle for too long. To be called now and then: without requests nobody else does.
    pub fn tidy(&self) {
        self.drop_old(&mut self.idle.lock());
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
