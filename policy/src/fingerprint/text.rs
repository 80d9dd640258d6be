//! Text keys: messages in canonical form, cut into fixed chunks.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::chain::{Chain, link, root};
use crate::ids::PrefixHash;

/// Canonical bytes per key, about 64 tokens of English: fine enough that a partial match loses little, coarse enough
/// that a 1 MB prompt is 4,096 keys.
pub const CHUNK_BYTES: usize = 256;

/// First byte of a mark. Never part of UTF-8, so text cannot imitate one.
const MARK: u8 = 0xFF;
const MARK_MESSAGE: u8 = 0x01;
const MARK_PROMPT: u8 = 0x02;

/// What a piece of a message is. The codes are part of the canonical form: two routers that share an index must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Field {
    /// Text content: a string content, or one text part.
    Text = 0x10,
    /// The author's `name`.
    Name = 0x11,
    /// An image, as the [`MediaDigest`] of its URL or data.
    Image = 0x12,
    /// Any other media part, by its digest.
    Media = 0x13,
    /// `id` of a tool call, or `tool_call_id` of its answer.
    ToolId = 0x14,
    /// Name of the function that a tool call calls.
    ToolName = 0x15,
    /// Its arguments, as the decoded string.
    ToolArguments = 0x16,
    /// One entry of the request's `tools`.
    Tools = 0x17,
    /// A content part of a kind unknown to the caller: its JSON without insignificant whitespace.
    Other = 0x18,
}

/// Builds a prompt's [`Chain`] from decoded bytes as they come. Cloning copies one chunk buffer and the keys so far.
///
/// Calls out of order (a push before any message) hash what they are given: the chain is then merely unlike any other.
#[derive(Clone, Debug)]
pub struct ChainBuilder {
    link: u64,
    bytes: u64,
    parent: Option<PrefixHash>,
    open: bool,
    /// A field whose mark is not yet written: a field that stays empty leaves no trace.
    pending: Option<Field>,
    fill: usize,
    buffer: [u8; CHUNK_BYTES],
    chain: Chain,
}

impl ChainBuilder {
    /// A chain for one model and cache salt. Nothing of another model or salt can ever match it.
    #[must_use]
    pub fn new(model: &str, cache_salt: Option<&str>) -> Self {
        Self {
            link: root(b"tailroute text 1", model, cache_salt),
            bytes: 0,
            parent: None,
            open: false,
            pending: None,
            fill: 0,
            buffer: [0; CHUNK_BYTES],
            chain: Chain::new(),
        }
    }

    /// Starts over for another request, keeping the memory.
    pub fn restart(&mut self, model: &str, cache_salt: Option<&str>) {
        self.link = root(b"tailroute text 1", model, cache_salt);
        self.bytes = 0;
        self.parent = None;
        self.open = false;
        self.pending = None;
        self.fill = 0;
        self.chain.clear();
    }

    /// Opens a message of this role. An open one is ended first.
    pub fn begin_message(&mut self, role: &str) {
        self.end_message();
        self.open = true;
        self.absorb(&[MARK, MARK_MESSAGE]);
        self.absorb(role.as_bytes());
    }

    /// Opens a plain prompt (`/v1/completions`): one text, whose chunks never restart. Feed it with [`Self::push`].
    pub fn begin_prompt(&mut self) {
        self.end_message();
        self.open = true;
        self.absorb(&[MARK, MARK_PROMPT]);
    }

    /// Opens a field of the message. It leaves no trace unless a byte follows.
    pub fn field(&mut self, field: Field) {
        self.pending = Some(field);
    }

    /// Bytes of the open field. Any split of the same bytes gives the same chain.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(field) = self.pending.take() {
            self.absorb(&[MARK, field as u8]);
        }
        self.absorb(bytes);
    }

    /// A whole field that is named by a digest: an image, or another medium.
    pub fn media(&mut self, field: Field, digest: MediaDigest) {
        self.field(field);
        self.push(&digest.hex());
    }

    /// Ends the message, or the plain prompt: what has gathered becomes a last, short chunk.
    pub fn end_message(&mut self) {
        self.pending = None;
        self.open = false;
        if self.fill > 0 {
            self.emit_buffer();
        }
    }

    /// The keys so far: those of complete chunks and ended messages.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The chain itself, for a caller that is done.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.chain
    }

    /// The key before this builder's first: `None` at a prompt's start; for a reply, where to attach its keys.
    #[must_use]
    pub fn parent(&self) -> Option<PrefixHash> {
        self.parent
    }

    /// Canonical bytes taken in, those not yet part of a key included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The builder for the reply to this prompt, holding only the keys that the reply adds.
    ///
    /// After messages it opens an `assistant` message. Within an open plain prompt it goes on where the prompt stops,
    /// since the next request will repeat prompt and completion as one text: call it before [`Self::end_message`].
    #[must_use]
    pub fn reply(&self) -> Self {
        let mut reply = Self {
            link: self.link,
            bytes: self.bytes,
            parent: self.chain.last().or(self.parent),
            open: self.open,
            pending: None,
            fill: self.fill,
            buffer: self.buffer,
            chain: Chain::new(),
        };
        if !reply.open {
            reply.begin_message("assistant");
        }
        reply
    }

    /// Appends to the message's canonical bytes; each full chunk becomes a key.
    fn absorb(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let [byte] = *bytes
            && self.fill < CHUNK_BYTES - 1
        {
            // A decoded escape: as common as line breaks, and not worth a call to copy.
            self.buffer[self.fill] = byte;
            self.fill += 1;
            return;
        }
        if self.fill > 0 {
            let taken = bytes.len().min(CHUNK_BYTES - self.fill);
            self.buffer[self.fill..self.fill + taken].copy_from_slice(&bytes[..taken]);
            self.fill += taken;
            bytes = &bytes[taken..];
            if self.fill < CHUNK_BYTES {
                return;
            }
            // `bytes` counts what was taken in; the chunk ends before the rest.
            self.link = link(self.link, &self.buffer);
            self.chain.push(self.link, self.bytes - bytes.len() as u64);
            self.fill = 0;
        }
        let mut chunks = bytes.chunks_exact(CHUNK_BYTES);
        let mut end = self.bytes - bytes.len() as u64;
        self.chain.reserve(chunks.len());
        for chunk in &mut chunks {
            end += CHUNK_BYTES as u64;
            self.link = link(self.link, chunk);
            self.chain.push(self.link, end);
        }
        let rest = chunks.remainder();
        self.buffer[..rest.len()].copy_from_slice(rest);
        self.fill = rest.len();
    }

    fn emit_buffer(&mut self) {
        self.link = link(self.link, &self.buffer[..self.fill]);
        self.chain.push(self.link, self.bytes);
        self.fill = 0;
    }
}

/// Names an image or another medium by its URL or data: 128 bits of XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MediaDigest(u128);

impl MediaDigest {
    /// Of a URL or data URL in one piece.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes))
    }

    /// In hexadecimal: as a canonical byte string it must not hold a mark.
    pub(super) fn hex(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|i| DIGITS[(self.0 >> (124 - 4 * i)) as usize & 15])
    }
}

/// [`MediaDigest`] of bytes that come in pieces (a data URL with escapes).
#[derive(Clone, Default)]
pub struct MediaHasher(Xxh3);

impl MediaHasher {
    /// Nothing hashed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// More bytes of the URL or data.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all of them.
    #[must_use]
    pub fn digest(&self) -> MediaDigest {
        MediaDigest(self.0.digest128())
    }
}

impl std::fmt::Debug for MediaHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MediaHasher({:?})", self.digest())
    }
}
