//! A client of ZMTP 3 (ZeroMQ's protocol) over TCP: SUB and DEALER sockets that connect, with the mechanism NULL.
//!
//! Written here because the `zeromq` crate allocates what a peer's frame header declares and bounds neither frames nor
//! messages, so a publisher could exhaust the router's memory with nine bytes.
//!
//! Version 3.0 is spoken (RFC 23), which peers of 3.1 (RFC 37) answer in 3.0; their PING is answered with PONG. A
//! connection is bounded in time and size at each step: [`OPENING`] for the connection and both handshakes,
//! `limits.max_kv_message_bytes` for a message, [`WHOLE`] from a message's first byte to its last. A connection that
//! breaks stays broken: its owner opens another one.

pub mod codec;

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use codec::{CodecError, Decoder, Incoming};

/// For a connection to come up: TCP, greeting and READY.
const OPENING: Duration = Duration::from_secs(5);
/// For a message from its first byte to its last.
const WHOLE: Duration = Duration::from_secs(30);
/// For a peer to take what is sent to it.
const SENDING: Duration = Duration::from_secs(5);
/// Bytes read from the socket at once.
const READ_BYTES: usize = 16 << 10;
/// Most bytes of a PING's context (RFC 37).
const MAX_CONTEXT_BYTES: usize = 16;

/// A connection's part in a pattern of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Subscribes to a publisher.
    Sub,
    /// Asks a ROUTER and reads what it answers.
    Dealer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    /// Whether a socket of this type answers this one.
    fn matches(self, peer: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"DEALER" | b"REP"),
        }
    }
}

/// Why a connection ended.
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
    /// The connection did not come up in time.
    #[error("no connection within {} s", OPENING.as_secs())]
    Opening,
    /// A message was not complete in time.
    #[error("a message took more than {} s", WHOLE.as_secs())]
    Unfinished,
    /// The peer does not read.
    #[error("the publisher does not read what is sent to it")]
    Unread,
    /// The peer's socket is of another type.
    #[error("it is not a socket that answers {0}")]
    Peer(&'static str),
    /// The peer refused the connection.
    #[error("the publisher refused the connection")]
    Refused,
    /// The peer broke the protocol or exceeded a bound.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl ZmtpError {
    /// What a peer did that no well-behaved one does, as `tailroute_kv_stream_total` counts it. `None` for connections that
    /// merely broke.
    #[must_use]
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
    /// Bytes read and not decoded yet.
    input: BytesMut,
    /// When the message under way began.
    began: Option<Instant>,
}

impl Connection {
    /// Connects to `tcp://host:port`. A message may be of `max_message_bytes` at the most.
    ///
    /// # Errors
    /// If the connection does not come up within five seconds.
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
    /// Exchanges greetings and READY commands.
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

    /// Asks for the messages whose first frame begins with `topic`.
    ///
    /// # Errors
    /// If the connection broke.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        self.send(&[&[&[1], topic].concat()]).await
    }

    /// Sends a message. Not to be cancelled: a frame that is sent in part breaks the connection.
    ///
    /// # Errors
    /// If the connection broke, or the peer does not read.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            codec::put_frame(&mut bytes, false, at + 1 < frames.len(), frame);
        }
        let sent = timeout(SENDING, self.stream.write_all(&bytes)).await;
        Ok(sent.map_err(|_| ZmtpError::Unread)??)
    }

    /// The next message's frames. May be cancelled: what has arrived is kept.
    ///
    /// # Errors
    /// If the connection broke, the peer broke the protocol or exceeded a bound, or a message takes too long.
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
                // A command may come between a message's frames, whose time goes on.
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

    /// A command after the handshake. Those that are not known are passed over, as the protocol asks.
    fn obey(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        match codec::name(body)? {
            (b"PING", [_, _, context @ ..]) if context.len() <= MAX_CONTEXT_BYTES => {
                let mut pong = Vec::new();
                codec::put_frame(&mut pong, true, false, &[b"\x04PONG", context].concat());
                // Not awaited, so that a cancelled `recv` leaves no half of it behind. A peer that reads has room for it.
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
