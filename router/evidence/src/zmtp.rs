//! A ZMTP 3 client (ZeroMQ's protocol) over TCP: connecting SUB and DEALER sockets, with the NULL mechanism.
//!
//! Written here because the `zeromq` crate allocates what a peer's frame header declares and bounds neither frames
//! nor messages, so a publisher could exhaust the router's memory with nine bytes.
//!
//! The version is 3.0 (RFC 23), which peers with 3.1 (RFC 37) support; a PING is answered with PONG. Each step is
//! bounded in time and size: [`OPENING`], `limits.max_kv_message_bytes`, [`WHOLE`]. A broken connection stays broken.

pub mod codec;

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use codec::{CodecError, Decoder, Incoming};

/// Time limit for connecting: TCP, greeting and READY.
const OPENING: Duration = Duration::from_secs(5);
/// Time limit for a message from its first byte to its last.
const WHOLE: Duration = Duration::from_secs(30);
const SENDING: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 << 10;
/// Largest number of bytes of a PING's context (RFC 37).
const MAX_CONTEXT_BYTES: usize = 16;

/// The socket type of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Subscribes to a PUB socket.
    Sub,
    /// Sends requests to a ROUTER socket and reads the answers.
    Dealer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn matches(self, peer: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"DEALER" | b"REP"),
        }
    }
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// The endpoint is not `tcp://host:port`.
    #[error("{0:?} is not tcp://host:port")]
    Endpoint(String),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("the publisher closed the connection")]
    Closed,
    /// The connection was not established in time.
    #[error("no connection within {} s", OPENING.as_secs())]
    Opening,
    /// A message was not complete in time.
    #[error("a message took more than {} s", WHOLE.as_secs())]
    Unfinished,
    /// The peer does not read.
    #[error("the publisher does not read what is sent to it")]
    Unread,
    /// The peer's socket type is not compatible.
    #[error("the peer's socket type does not match {0}")]
    Peer(&'static str),
    /// The peer refused the connection.
    #[error("the publisher refused the connection")]
    Refused,
    /// The peer broke the protocol or exceeded a bound.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl ZmtpError {
    /// Returns the kind of breach as in `tailroute_kv_stream_total`; `None` for a connection that merely broke.
    pub fn breach(&self) -> Option<&'static str> {
        match self {
            Self::Codec(error) if error.is_oversized() => Some("oversized"),
            Self::Codec(_) | Self::Peer(_) => Some("malformed"),
            Self::Unfinished | Self::Opening | Self::Unread => Some("unfinished"),
            _ => None,
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    decoder: Decoder,
    /// Bytes that are read and not decoded yet.
    input: BytesMut,
    /// Time at which the current message began.
    began: Option<Instant>,
}

impl Connection {
    /// Connects to `tcp://host:port`. A message may have at most `max_message_bytes`. Fails if the connection is not
    /// established within five seconds.
    pub async fn connect(endpoint: &str, role: Role, max_message_bytes: usize) -> Result<Self, ZmtpError> {
        let address = endpoint.strip_prefix("tcp://");
        let address = address.ok_or_else(|| ZmtpError::Endpoint(endpoint.to_owned()))?;
        let open = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Self::handshake(stream, role, max_message_bytes).await
        };
        timeout(OPENING, open).await.unwrap_or(Err(ZmtpError::Opening))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn handshake(mut stream: S, role: Role, max_message_bytes: usize) -> Result<Self, ZmtpError> {
        let mut hello = codec::greeting().to_vec();
        codec::put_frame(&mut hello, true, false, &codec::ready(role.name()));
        stream.write_all(&hello).await?;
        let mut greeting = [0; codec::GREETING_BYTES];
        stream.read_exact(&mut greeting).await?;
        codec::check_greeting(&greeting)?;
        let mut opened = Self {
            stream,
            decoder: Decoder::new(max_message_bytes),
            input: BytesMut::with_capacity(READ_BYTES),
            began: None,
        };
        let Incoming::Command(ready) = opened.incoming().await? else {
            return Err(CodecError::Command.into());
        };
        match codec::name(&ready)? {
            (b"READY", data) if role.matches(codec::socket_type(data)?) => Ok(opened),
            (b"READY", _) => Err(ZmtpError::Peer(role.name())),
            (b"ERROR", _) => Err(ZmtpError::Refused),
            _ => Err(CodecError::Command.into()),
        }
    }

    /// Subscribes to messages whose first frame begins with `topic`. Fails if the connection broke.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        self.send(&[&[&[1], topic].concat()]).await
    }

    /// Sends a message. Not cancel-safe: a partially sent frame breaks the connection. Fails if the connection broke,
    /// or the peer does not read.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            codec::put_frame(&mut bytes, false, at + 1 < frames.len(), frame);
        }
        let sent = timeout(SENDING, self.stream.write_all(&bytes)).await;
        Ok(sent.map_err(|_| ZmtpError::Unread)??)
    }

    /// Returns the next message's frames. Cancel-safe: received bytes are kept. Fails if the connection broke, the peer
    /// violated the protocol or exceeded a bound, or a message takes too long.
    pub async fn recv(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        loop {
            match self.incoming().await? {
                Incoming::Message(frames) => return Ok(frames),
                Incoming::Command(body) => self.obey(&body)?,
            }
        }
    }

    async fn incoming(&mut self) -> Result<Incoming, ZmtpError> {
        loop {
            if let Some(incoming) = self.decoder.read(&mut self.input)? {
                // A command may come between a message's frames; the message's timeout continues.
                self.began = self.began.filter(|_| self.decoder.is_within());
                return Ok(incoming);
            }
            if self.decoder.is_within() {
                self.began.get_or_insert_with(Instant::now);
            }
            self.input.reserve(READ_BYTES);
            let mut room = (&mut self.stream).take(READ_BYTES as u64);
            let read = room.read_buf(&mut self.input);
            let count = match self.began {
                Some(began) => timeout_at(began + WHOLE, read)
                    .await
                    .map_err(|_| ZmtpError::Unfinished)??,
                None => read.await?,
            };
            if count == 0 {
                return Err(ZmtpError::Closed);
            }
        }
    }

    /// Handles a command after the handshake. Unknown ones are ignored, as the protocol requires.
    fn obey(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        match codec::name(body)? {
            (b"PING", [_, _, context @ ..]) if context.len() <= MAX_CONTEXT_BYTES => {
                let mut pong = Vec::new();
                codec::put_frame(&mut pong, true, false, &[b"\x04PONG", context].concat());
                // Not awaited, so that a cancelled `recv` leaves no partial frame. A peer that reads has room for it.
                match self.stream.write(&pong).now_or_never() {
                    Some(Ok(count)) if count == pong.len() => Ok(()),
                    Some(Err(error)) => Err(error.into()),
                    _ => Err(ZmtpError::Unread),
                }
            }
            (b"PING", _) => Err(CodecError::Command.into()),
            (b"ERROR", _) => Err(ZmtpError::Refused),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
