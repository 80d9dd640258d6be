//! Text keys: messages in canonical form, cut into fixed chunks.

use super::chain::{Chain, digest, root};
use super::keys::{CHUNK_BYTES, Digests, Links, Sink};
use super::media::{MOST_PARTS, MediaDigest, MediaPart, Medium};
use super::spelling::spelled;
use crate::ids::PrefixHash;

/// Longest [window](Chunker::push_short), and so the overrun of a copy beyond a chunk.
const SLACK: usize = 64;

/// First byte of a mark. It never occurs in UTF-8, so text cannot imitate one.
const MARK: u8 = 0xFF;
const MARK_MESSAGE: u8 = 0x01;
const MARK_PROMPT: u8 = 0x02;

const DOMAIN: &[u8] = b"tailroute text 6";

/// Kinds of fields in a message. The codes are part of the canonical form: routers that share an index must agree.
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
    /// `id` of a tool call, or `tool_call_id` of its result.
    ToolId = 0x14,
    /// Name of the function of a tool call.
    ToolName = 0x15,
    /// Arguments of a tool call: a string's text, or compact JSON.
    ToolArguments = 0x16,
    /// One entry of the request's `tools`, as compact JSON.
    Tools = 0x17,
    /// A content part of a kind unknown to the caller, as compact JSON.
    Other = 0x18,
    /// An assistant's reasoning, where the client sends it back.
    Reasoning = 0x19,
}

impl Field {
    /// Returns the two bytes that open the field, as one number: two byte writes would stall the read of both.
    #[inline]
    fn mark(self) -> [u8; 2] {
        (u16::from(MARK) | u16::from(self as u8) << 8).to_le_bytes()
    }
}

/// Cuts canonical bytes into pieces as they come, and hashes each. A clone copies one chunk's buffer and the keys so
/// far. Calls out of order (a push before any message) hash what they are given; the chain then matches no other.
#[derive(Clone, Debug)]
pub struct Chunker<S> {
    sink: S,
    bytes: u64,
    open: bool,
    plain: bool,
    /// The open field until its mark is written, with its first byte: an empty field is omitted.
    pending: Option<Field>,
    refers: bool,
    media: Vec<MediaPart>,
    fill: usize,
    buffer: [u8; CHUNK_BYTES + SLACK],
}

/// Builds a chain from its beginning.
pub type ChainBuilder = Chunker<Links>;

/// The hashed pieces of a prompt before its model and salt are known.
pub type Pieces = Chunker<Digests>;

/// A position between two messages; see [`Pieces::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pieces: usize,
    bytes: u64,
}

impl<S: Sink> Chunker<S> {
    fn onto(sink: S) -> Self {
        Self {
            sink,
            bytes: 0,
            open: false,
            plain: false,
            pending: None,
            refers: false,
            media: Vec::new(),
            fill: 0,
            buffer: [0; CHUNK_BYTES + SLACK],
        }
    }

    fn reset(&mut self) {
        self.bytes = 0;
        self.open = false;
        self.plain = false;
        self.pending = None;
        self.refers = false;
        self.media.clear();
        self.fill = 0;
    }

    /// Opens a message of this role. Ends an open one first.
    pub fn begin_message(&mut self, role: &str) {
        self.end_message();
        self.open = true;
        self.absorb(&[MARK, MARK_MESSAGE]);
        spelled(role, |piece| self.absorb(piece));
    }

    /// Opens a plain prompt (`/v1/completions`): one text, whose chunks never restart. Feed it with [`Self::push`].
    /// Each of its pieces is a key, since the next turn may diverge anywhere within it.
    pub fn begin_prompt(&mut self) {
        self.end_message();
        self.open = true;
        self.plain = true;
        self.absorb(&[MARK, MARK_PROMPT]);
    }

    /// Opens a field of the message. A field without bytes is omitted.
    pub fn field(&mut self, field: Field) {
        self.refers |= matches!(field, Field::Image | Field::Media | Field::Other);
        self.pending = Some(field);
    }

    /// Adds canonical bytes to the open field. Any split of the same bytes gives the same chain.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(field) = self.pending.take() {
            self.absorb(&field.mark());
        }
        self.absorb(bytes);
    }

    /// Adds the first `length` bytes of a window of up to 64. The window is copied as a whole, without branches.
    #[inline]
    pub fn push_short<const N: usize>(&mut self, window: &[u8; N], length: usize) {
        const { assert!(N <= SLACK) };
        if length == 0 {
            return;
        }
        if let Some(field) = self.pending.take() {
            self.absorb(&field.mark());
        }
        self.buffer[self.fill..self.fill + N].copy_from_slice(window);
        self.fill += length.min(N);
        self.bytes += length.min(N) as u64;
        if self.fill >= CHUNK_BYTES {
            self.fill -= CHUNK_BYTES;
            self.piece(digest(&self.buffer[..CHUNK_BYTES]), self.bytes - self.fill as u64);
            self.buffer.copy_within(CHUNK_BYTES.., 0);
        }
    }

    /// Adds text to the open field, in its [spelling](super::spell).
    pub fn push_text(&mut self, text: &str) {
        spelled(text, |piece| self.push(piece));
    }

    /// Adds a whole field given by a digest: an image, or another medium.
    pub fn media(&mut self, field: Field, medium: Medium, digest: MediaDigest) {
        self.field(field);
        self.push(&digest.hex());
        if self.media.len() < MOST_PARTS {
            let end = self.bytes;
            self.media.push(MediaPart { medium, end });
        }
    }

    /// Ends the message, or the plain prompt. The remaining bytes become a last, short chunk.
    pub fn end_message(&mut self) {
        self.pending = None;
        self.open = false;
        // Text after a plain prompt continues the prompt's own text.
        let is_stop = self.fill > 0 || !std::mem::take(&mut self.plain);
        if self.fill > 0 {
            self.piece(digest(&self.buffer[..self.fill]), self.bytes);
            self.fill = 0;
        }
        if is_stop {
            self.sink.stop();
        }
    }

    #[inline]
    fn piece(&mut self, digest: u64, end: u64) {
        self.sink.piece(digest, end);
        if self.plain {
            self.sink.cut();
        }
    }

    /// Returns whether a message or plain prompt is open.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Returns whether a part may contain more than its bytes: a medium, or an unknown kind of part.
    pub fn refers(&self) -> bool {
        self.refers
    }

    /// Returns the canonical bytes taken in, including those not yet part of a key.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn absorb(&mut self, bytes: &[u8]) {
        let filled = self.fill + bytes.len();
        if filled < CHUNK_BYTES {
            self.buffer[self.fill..filled].copy_from_slice(bytes);
            self.fill = filled;
            self.bytes += bytes.len() as u64;
        } else {
            self.absorb_chunks(bytes);
        }
    }

    /// Adds bytes that complete at least one chunk. All but the first chunk are hashed in place.
    fn absorb_chunks(&mut self, mut bytes: &[u8]) {
        if self.fill > 0 {
            let (head, rest) = bytes.split_at(CHUNK_BYTES - self.fill);
            self.buffer[self.fill..CHUNK_BYTES].copy_from_slice(head);
            self.bytes += head.len() as u64;
            self.piece(digest(&self.buffer[..CHUNK_BYTES]), self.bytes);
            bytes = rest;
        }
        let (chunks, rest) = bytes.as_chunks::<CHUNK_BYTES>();
        self.sink.expect(chunks.len());
        for chunk in chunks {
            self.bytes += CHUNK_BYTES as u64;
            self.piece(digest(chunk), self.bytes);
        }
        self.buffer[..rest.len()].copy_from_slice(rest);
        self.fill = rest.len();
        self.bytes += rest.len() as u64;
    }
}

impl ChainBuilder {
    /// Creates a chain for one model and cache salt. It never matches a chain of another model or salt.
    pub fn new(model: &str, cache_salt: Option<&str>) -> Self {
        let root = root(DOMAIN, model, cache_salt);
        Self::onto(Links::after(root, 0, None, false, Chain::new()))
    }

    /// Starts over for another request, keeping the memory.
    pub fn restart(&mut self, model: &str, cache_salt: Option<&str>) {
        self.reset();
        let mut chain = std::mem::take(&mut self.sink.chain);
        chain.clear();
        self.sink = Links::after(root(DOMAIN, model, cache_salt), 0, None, false, chain);
    }

    /// Returns the keys so far: those of complete chunks and ended messages.
    pub fn chain(&self) -> &Chain {
        &self.sink.chain
    }

    /// Returns the chain by value.
    pub fn into_chain(self) -> Chain {
        self.sink.chain
    }

    /// Returns the key before this builder's first: `None` at a prompt's start; for a response, the key to attach to.
    pub fn parent(&self) -> Option<PrefixHash> {
        self.sink.parent
    }

    /// Returns whether this is a response within the text that it follows, as after a plain prompt. The next turn then
    /// repeats neither the prompt's last key nor this response's, unless their chunks happen to be full.
    pub fn goes_on(&self) -> bool {
        self.sink.goes_on
    }

    /// Returns the builder for the response to this prompt, which holds only the keys that the response adds. It opens
    /// an `assistant` message, or continues an open plain prompt: call it before [`Self::end_message`].
    pub fn reply(&self) -> Self {
        self.continued(self.sink.reply(self.open), self.bytes)
    }
}

impl<S: Sink> Chunker<S> {
    fn continued(&self, links: Links, bytes: u64) -> ChainBuilder {
        let mut reply = Chunker {
            sink: links,
            bytes,
            open: self.open,
            plain: self.plain,
            pending: None,
            refers: false,
            media: Vec::new(),
            fill: self.fill,
            buffer: self.buffer,
        };
        if !reply.open {
            reply.begin_message("assistant");
        }
        reply
    }
}

impl Pieces {
    /// Creates an empty sequence of pieces.
    pub fn new() -> Self {
        Self::onto(Digests::default())
    }

    /// Returns the position of the next message. Ends an open one.
    pub fn mark(&mut self) -> Mark {
        self.end_message();
        Mark {
            pieces: self.sink.0.len(),
            bytes: self.bytes,
        }
    }

    /// Drops everything since the mark, for fields that have to be added in another order.
    pub fn rewind(&mut self, to: Mark) {
        let (refers, mut media) = (self.refers, std::mem::take(&mut self.media));
        self.reset();
        media.retain(|part| part.end <= to.bytes);
        (self.refers, self.media) = (refers, media);
        self.bytes = to.bytes;
        self.sink.0.truncate(to.pieces);
    }

    /// Appends the messages of `more`, all of them ended.
    pub fn extend_from(&mut self, more: &Self) {
        self.end_message();
        let before = self.bytes;
        self.sink.extend_from(&more.sink, before);
        self.media.extend(more.moved_media(before));
        self.bytes += more.bytes;
    }

    /// Returns the media of the prompt that begins with `before` and continues with these pieces.
    #[must_use]
    pub fn media_after(&self, before: &Self) -> Vec<MediaPart> {
        let own = self.moved_media(before.bytes);
        before.media.iter().copied().chain(own).collect()
    }

    fn moved_media(&self, by: u64) -> impl Iterator<Item = MediaPart> {
        let moved = move |part: &MediaPart| MediaPart {
            end: part.end + by,
            ..*part
        };
        self.media.iter().map(moved)
    }

    /// Removes the pieces and keeps their memory, up to the size of `kept` pieces.
    pub fn clear(&mut self, kept: usize) {
        self.reset();
        self.sink.0.clear();
        self.sink.0.shrink_to(kept);
    }

    /// Returns the chain of the pieces of `before` and then of these, and the builder for the response: the same as a
    /// [`ChainBuilder`] with the same input. Ends what is open. Allocates only the chain, at its exact size.
    #[must_use]
    pub fn rooted(&mut self, before: &Self, model: &str, cache_salt: Option<&str>) -> (Chain, ChainBuilder) {
        let bytes = before.bytes + self.bytes;
        let (first, own) = (
            before.sink.counts(0, before.bytes),
            self.sink.counts(before.bytes, bytes),
        );
        let room = Chain::with_room(first.0 + own.0, first.1 + own.1);
        let mut links = Links::after(root(DOMAIN, model, cache_salt), 0, None, false, room);
        for &piece in &before.sink.0 {
            links.take(piece, 0);
        }
        for &piece in &self.sink.0 {
            links.take(piece, before.bytes);
        }
        // Before the end: the next prompt continues within a plain prompt's last, short chunk and does not repeat it.
        let reply = self.continued(links.reply(self.open), bytes);
        let (closed, is_plain) = (self.sink.0.len(), self.plain);
        self.end_message();
        for &piece in &self.sink.0[closed..] {
            links.take(piece, before.bytes);
        }
        if !is_plain {
            links.stop();
        }
        (links.chain, reply)
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self::new()
    }
}
