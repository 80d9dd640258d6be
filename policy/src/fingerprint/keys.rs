//! The choice of the links that are keys: from pieces to keys, at once or when their root is known.
//!
//! Within a message a key spans a power of two of pieces, at most a [share](FINENESS) of what precedes it. This depends
//! on the position alone, so a repeated prompt, or a response hashed before it is sent back, has the same keys.

use super::chain::{Chain, fold};
use crate::ids::PrefixHash;

/// Canonical bytes per piece, about 64 tokens of English. Small enough that a partial match loses little.
pub const CHUNK_BYTES: usize = 256;

/// Inverse of the largest share of the preceding prompt that a key spans, which bounds the loss within a message.
const FINENESS: u64 = 8;
/// Upper bound on the canonical bytes of a key, about 2,000 tokens.
const MOST_BYTES: u64 = 8192;

/// Returns the end of a key that begins after `start` bytes of the prompt, unless its message ends earlier.
fn key_end(start: u64) -> u64 {
    start + key_bytes(start)
}

/// Returns the canonical bytes of a key that begins after `start` bytes: a power of two, and at least a piece.
fn key_bytes(start: u64) -> u64 {
    let share = (start / FINENESS).clamp(CHUNK_BYTES as u64, MOST_BYTES);
    1 << share.ilog2()
}

/// The destination of a [`super::Chunker`]'s pieces.
pub trait Sink {
    /// Receives the next piece's digest, and the canonical bytes up to its end.
    fn piece(&mut self, digest: u64, end: u64);
    /// Ends a key with the last piece, whatever its span.
    fn cut(&mut self);
    /// Ends the message with the last piece, and a key with it.
    fn stop(&mut self);
    /// Announces about this many pieces.
    fn expect(&mut self, pieces: usize);
}

/// Makes keys of pieces at once, one or several pieces per key.
#[derive(Clone, Debug)]
pub struct Links {
    link: u64,
    /// Start of the next key.
    start: u64,
    until: u64,
    end: u64,
    pub(super) parent: Option<PrefixHash>,
    pub(super) goes_on: bool,
    pub(super) chain: Chain,
}

/// Stores pieces until their root is known.
#[derive(Clone, Debug, Default)]
pub struct Digests(pub(super) Vec<Digest>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Digest {
    digest: u64,
    /// Canonical bytes up to the piece's end, times four. The low bits say whether a key ends there in any case
    /// ([`CUT`], [`STOP`]).
    end: u64,
}

const CUT: u64 = 1;
const STOP: u64 = 2;

impl Digest {
    fn end(self) -> u64 {
        self.end >> 2
    }

    fn is(self, flags: u64) -> bool {
        self.end & flags != 0
    }
}

impl Links {
    /// Starts after `start` bytes that hash to `link`: at the beginning of a chain, or of a response.
    pub(super) fn after(
        link: u64,
        start: u64,
        parent: Option<PrefixHash>,
        goes_on: bool,
        chain: Chain,
    ) -> Self {
        Self {
            link,
            start,
            until: key_end(start),
            end: start,
            parent,
            goes_on,
            chain,
        }
    }

    pub(super) fn reply(&self, goes_on: bool) -> Self {
        Self {
            link: self.link,
            start: self.start,
            until: self.until,
            end: self.end,
            parent: self.chain.last().or(self.parent),
            goes_on,
            chain: Chain::new(),
        }
    }

    pub(super) fn take(&mut self, piece: Digest, before: u64) {
        self.piece(piece.digest, before + piece.end());
        if piece.is(STOP) {
            self.stop();
        } else if piece.is(CUT) {
            self.cut();
        }
    }
}

impl Digests {
    /// Returns the numbers of keys and of message ends that the pieces make after `before` bytes and up to `bytes`.
    pub(super) fn counts(&self, before: u64, bytes: u64) -> (usize, usize) {
        let (mut start, mut until, mut keys, mut stops) = (before, key_end(before), 0, 0);
        for piece in &self.0 {
            let end = before + piece.end();
            if piece.is(CUT | STOP) || end >= until {
                (start, until, keys) = (end, key_end(end), keys + 1);
            }
            stops += usize::from(piece.is(STOP));
        }
        let open = usize::from(bytes > start);
        (keys + open, stops + open)
    }

    pub(super) fn extend_from(&mut self, more: &Self, before: u64) {
        self.0.extend(more.0.iter().map(|&piece| Digest {
            end: piece.end + (before << 2),
            ..piece
        }));
    }
}

impl Sink for Links {
    #[inline]
    fn piece(&mut self, digest: u64, end: u64) {
        self.link = fold(self.link, digest);
        self.end = end;
        if end >= self.until {
            self.cut();
        }
    }

    #[inline]
    fn cut(&mut self) {
        if self.end > self.start {
            self.chain.push(self.link, self.end);
            self.start = self.end;
            self.until = key_end(self.end);
        }
    }

    fn stop(&mut self) {
        self.cut();
        self.chain.stop();
    }

    fn expect(&mut self, pieces: usize) {
        let bytes = pieces as u64 * CHUNK_BYTES as u64;
        self.chain
            .reserve(usize::try_from(bytes / key_bytes(self.start)).unwrap_or(0));
    }
}

impl Sink for Digests {
    fn piece(&mut self, digest: u64, end: u64) {
        self.0.push(Digest {
            digest,
            end: end << 2,
        });
    }

    fn cut(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.end |= CUT;
        }
    }

    fn stop(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.end |= STOP;
        }
    }

    fn expect(&mut self, pieces: usize) {
        self.0.reserve(pieces);
    }
}
