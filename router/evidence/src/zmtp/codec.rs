//! Greeting, frames and commands of ZMTP 3: bytes in, messages and commands out. No I/O and no clock.
//!
//! A declared length is compared with a bound first. A frame's buffer then doubles as it fills, up to that length.

use bytes::{Buf, Bytes};

/// Length of a greeting, in bytes.
pub const GREETING_BYTES: usize = 64;
/// Largest number of frames of a message. Messages of cache events have three, those of a replay four.
const MAX_FRAMES: usize = 16;
/// Largest number of bytes of a command. The longest, READY, carries a socket's type and identity.
const MAX_COMMAND_BYTES: usize = 4096;
/// Number of bytes that are allocated first for a frame's body.
const FIRST_BODY_BYTES: usize = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A protocol violation or an exceeded bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The first bytes are not a ZMTP greeting.
    #[error("invalid ZMTP greeting")]
    Greeting,
    /// The version is older than 3.0.
    #[error("the peer uses ZMTP {0}; the oldest supported version is 3.0")]
    Version(u8),
    /// The mechanism is not NULL.
    #[error("the peer requires a security mechanism; only NULL is supported")]
    Mechanism,
    /// The frame's flags are invalid.
    #[error("frame flags {0:#04x}")]
    Flags(u8),
    /// A command is malformed.
    #[error("a malformed command")]
    Command,
    /// A message is longer than the bound.
    #[error("a message of at least {declared} bytes; limits.max_kv_message_bytes is {bound}")]
    MessageBytes {
        /// Bytes of the earlier frames plus the declared length of the latest one.
        declared: u64,
        /// Value of `limits.max_kv_message_bytes`.
        bound: usize,
    },
    /// A message has too many frames.
    #[error("a message of more than {MAX_FRAMES} frames")]
    Frames,
    /// A command is too long.
    #[error("a command of {0} bytes; the limit is {MAX_COMMAND_BYTES}")]
    CommandBytes(u64),
}

impl CodecError {
    /// Returns whether a bound was exceeded, as opposed to a protocol violation.
    pub fn is_oversized(&self) -> bool {
        matches!(
            self,
            Self::MessageBytes { .. } | Self::Frames | Self::CommandBytes(_)
        )
    }
}

/// A decoded message or command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A message with all frames.
    Message(Vec<Bytes>),
    /// The body of a command.
    Command(Bytes),
}

/// Returns the client's greeting: version 3.0, mechanism NULL.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Checks a peer's greeting. Peers with higher versions answer a 3.0 client in 3.0. Fails if it is not a greeting of
/// ZMTP 3 with the NULL mechanism.
pub fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), CodecError> {
    if greeting[0] != 0xff || greeting[9] != 0x7f {
        return Err(CodecError::Greeting);
    }
    if greeting[10] < 3 {
        return Err(CodecError::Version(greeting[10]));
    }
    let (name, padding) = greeting[12..32].split_at(4);
    if name != b"NULL" || padding.iter().any(|&byte| byte != 0) {
        return Err(CodecError::Mechanism);
    }
    Ok(())
}

/// Appends a frame.
pub fn put_frame(out: &mut Vec<u8>, is_command: bool, has_more: bool, body: &[u8]) {
    let flags = if has_more { MORE } else { 0 } | if is_command { COMMAND } else { 0 };
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

/// Returns a READY command's body.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((socket_type.len() as u32).to_be_bytes());
    body.extend(socket_type.as_bytes());
    body
}

/// Splits a command, or one of its properties, into its name and the rest. Fails if it ends within its name.
pub fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), CodecError> {
    let (&length, rest) = bytes.split_first().ok_or(CodecError::Command)?;
    rest.split_at_checked(length.into()).ok_or(CodecError::Command)
}

/// Returns the socket type in a READY command's data. Fails if its properties are malformed, or contain none.
pub fn socket_type(mut data: &[u8]) -> Result<&[u8], CodecError> {
    let mut found = None;
    while !data.is_empty() {
        let (property, rest) = name(data)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(CodecError::Command)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (value, rest) = rest.split_at_checked(length).ok_or(CodecError::Command)?;
        if property.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        data = rest;
    }
    found.ok_or(CodecError::Command)
}

/// A decoder of frames in pieces of any length.
#[derive(Debug)]
pub struct Decoder {
    max_message_bytes: usize,
    /// Received part of the next frame's flags and length.
    head: Vec<u8>,
    body: Option<FrameBody>,
    frames: Vec<Bytes>,
    frame_bytes: usize,
}

#[derive(Debug)]
struct FrameBody {
    flags: u8,
    length: usize,
    arrived: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder with a bound of `max_message_bytes` per message.
    pub fn new(max_message_bytes: usize) -> Self {
        Self {
            max_message_bytes,
            head: Vec::with_capacity(9),
            body: None,
            frames: Vec::new(),
            frame_bytes: 0,
        }
    }

    /// Returns whether a frame or a message is incomplete.
    pub fn is_within(&self) -> bool {
        !self.head.is_empty() || self.body.is_some() || !self.frames.is_empty()
    }

    /// Returns the number of bytes allocated for the current message.
    pub fn allocated_bytes(&self) -> usize {
        self.frame_bytes + self.body.as_ref().map_or(0, |body| body.arrived.capacity())
    }

    /// Consumes bytes of `input` until a message or a command is complete; `None` if more are needed. Fails if the peer
    /// violates the protocol or exceeds a bound, after which nothing can be read.
    pub fn read(&mut self, input: &mut impl Buf) -> Result<Option<Incoming>, CodecError> {
        loop {
            let Some(body) = &mut self.body else {
                let Some((flags, length)) = self.read_head(input)? else {
                    return Ok(None);
                };
                let length = self.admit(flags, length)?;
                let arrived = Vec::with_capacity(length.min(FIRST_BODY_BYTES));
                self.body = Some(FrameBody {
                    flags,
                    length,
                    arrived,
                });
                continue;
            };
            if !body.fill(input) {
                return Ok(None);
            }
            let flags = body.flags;
            let frame = Bytes::from(self.body.take().map(|body| body.arrived).unwrap_or_default());
            if flags & COMMAND != 0 {
                return Ok(Some(Incoming::Command(frame)));
            }
            self.frame_bytes += frame.len();
            self.frames.push(frame);
            if flags & MORE == 0 {
                self.frame_bytes = 0;
                return Ok(Some(Incoming::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    /// Reads a frame's flags and length; `None` if they are incomplete.
    fn read_head(&mut self, input: &mut impl Buf) -> Result<Option<(u8, u64)>, CodecError> {
        while input.has_remaining() {
            self.head.push(input.get_u8());
            let flags = self.head[0];
            let is_known = flags <= (MORE | LONG | COMMAND) && flags & (MORE | COMMAND) != (MORE | COMMAND);
            if !is_known {
                return Err(CodecError::Flags(flags));
            }
            let width = if flags & LONG == 0 { 1 } else { 8 };
            if self.head.len() == 1 + width {
                let length = self.head[1..]
                    .iter()
                    .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                self.head.clear();
                return Ok(Some((flags, length)));
            }
        }
        Ok(None)
    }

    fn admit(&self, flags: u8, length: u64) -> Result<usize, CodecError> {
        if flags & COMMAND != 0 {
            let short = usize::try_from(length)
                .ok()
                .filter(|&length| length <= MAX_COMMAND_BYTES);
            return short.ok_or(CodecError::CommandBytes(length));
        }
        if self.frames.len() == MAX_FRAMES {
            return Err(CodecError::Frames);
        }
        let room = self.max_message_bytes.saturating_sub(self.frame_bytes);
        let short = usize::try_from(length).ok().filter(|&length| length <= room);
        short.ok_or(CodecError::MessageBytes {
            declared: length.saturating_add(self.frame_bytes as u64),
            bound: self.max_message_bytes,
        })
    }
}

impl FrameBody {
    /// Consumes bytes of the frame. Returns whether it is complete.
    fn fill(&mut self, input: &mut impl Buf) -> bool {
        while self.arrived.len() < self.length && input.has_remaining() {
            if self.arrived.len() == self.arrived.capacity() {
                let missing = self.length - self.arrived.len();
                self.arrived
                    .reserve_exact(missing.min(self.arrived.len().max(FIRST_BODY_BYTES)));
            }
            let room = (self.arrived.capacity() - self.arrived.len()).min(self.length - self.arrived.len());
            let piece = input.chunk();
            let piece = &piece[..piece.len().min(room)];
            self.arrived.extend_from_slice(piece);
            let taken = piece.len();
            input.advance(taken);
        }
        self.arrived.len() == self.length
    }
}

#[cfg(test)]
mod tests;
