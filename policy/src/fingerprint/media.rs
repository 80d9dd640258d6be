//! Digests of images and other media, which replace their bytes in the canonical form.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The kind of a medium. The number of tokens per medium depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "as named")]
pub enum Medium {
    Image,
    Audio,
    Video,
    /// A document: a PDF, say.
    File,
}

impl Medium {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Image, Self::Audio, Self::Video, Self::File];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
}

/// A medium in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaPart {
    /// Kind of the medium.
    pub medium: Medium,
    /// Position at which the medium's digest ends, in canonical bytes of the prompt.
    pub end: u64,
}

/// Upper bound on the parts recorded per prompt. Further media count as text.
pub(super) const MOST_PARTS: usize = 4096;

/// The digest of an image or another medium, by its URL or data: 128 bits of XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MediaDigest(u128);

impl MediaDigest {
    /// Hashes a URL or data URL in one piece.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes))
    }

    /// Returns the digest in hexadecimal, which contains no mark.
    pub(super) fn hex(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|i| DIGITS[(self.0 >> (124 - 4 * i)) as usize & 15])
    }
}

/// Computes a [`MediaDigest`] of bytes that come in pieces (a data URL with escapes).
#[derive(Clone, Default)]
pub struct MediaHasher(Xxh3);

impl MediaHasher {
    /// Creates an empty hasher.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes of the URL or data.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes.
    pub fn digest(&self) -> MediaDigest {
        MediaDigest(self.0.digest128())
    }
}

impl std::fmt::Debug for MediaHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MediaHasher({:?})", self.digest())
    }
}
