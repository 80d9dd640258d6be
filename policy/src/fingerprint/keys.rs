//! Which links of a chain are keys: from pieces to keys, at once or once their root is known.
//!
//! A message ends with a key. Within one a key spans a power of two of pieces, at most a [share](FINENESS) of what comes before it:
//! a rule of the place alone, so that whoever repeats a prompt, or hashes the reply before it is sent back, has the same keys.

use super::chain::{Chain, fold};
use super::text::CHUNK_BYTES;
use crate::ids::PrefixHash;

/// A key is at most this share of what comes before it, so that is the most that a match within a message can lose.
const FINENESS: u64 = 8;
/// Most canonical bytes of a key, about 2,000 tokens.
const MOST_BYTES: u64 = 8192;

/// Where a key ends that begins after `start` bytes of the prompt, unless its message ends before.
fn key_end(start: u64) -> u64 {
    start + key_bytes(start)
}

/// Canonical bytes of such a key: powers of two, and a piece at the least.
fn key_bytes(start: u64) -> u64 {
    let share = (start / FINENESS).clamp(CHUNK_BYTES as u64, MOST_BYTES);
    1 << share.ilog2()
}

/// Where a [`super::Cutter`]'s pieces go.
pub trait Sink {
    /// The next piece's digest, and the canonical bytes up to its end.
    fn piece(&mut self, digest: u64, end: u64);
    /// A key ends with the last piece, however much it spans.
    fn cut(&mut self);
    /// The message ends with the last piece, and a key with it.
    fn stop(&mut self);
    /// About this many pieces follow.
    fn expect(&mut self, pieces: usize);
}

/// Pieces become keys at once, one or several of them a key.
#[derive(Clone, Debug)]
pub struct Links {
    link: u64,
    /// Where the next key begins, where it ends if its message does not before, and where the last piece ends.
    start: u64,
    until: u64,
    end: u64,
    pub(super) parent: Option<PrefixHash>,
    /// See [`super::ChainBuilder::goes_on`].
    pub(super) goes_on: bool,
    pub(super) chain: Chain,
}

/// Pieces wait for their root.
#[derive(Clone, Debug, Default)]
pub struct Digests(pub(super) Vec<Digest>);

/// A piece, and where it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest {
    digest: u64,
    /// Canonical bytes up to its end, and below them whether a key ends with it in any case ([`CUT`], [`STOP`]).
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
    /// At the beginning of a chain, or of a reply, whose `start` bytes before it have become `link`.
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

    /// Of a reply that goes on from here.
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

    /// A piece as it waited for its root, `before` bytes further on.
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
    /// Keys that the pieces make after `before` bytes, and ends of messages among them, what goes on after them up to `bytes`
    /// included.
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

    /// Adds another prompt's pieces `before` bytes further on.
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
