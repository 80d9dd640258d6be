//! Text keys: messages in canonical form, cut into fixed chunks.

use super::chain::{Chain, digest, root};
use super::keys::{Digests, Links, Sink};
use super::media::MediaDigest;
use super::spelling::spelled;
use crate::ids::PrefixHash;

/// Canonical bytes per piece, about 64 tokens of English: fine enough that a partial match loses little.
pub const CHUNK_BYTES: usize = 256;

/// Longest [window](Cutter::push_short): so far may a copy reach beyond a chunk.
const SLACK: usize = 64;

/// First byte of a mark. Never part of UTF-8, so text cannot imitate one.
const MARK: u8 = 0xFF;
const MARK_MESSAGE: u8 = 0x01;
const MARK_PROMPT: u8 = 0x02;

const DOMAIN: &[u8] = b"tailroute text 6";

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
    /// Its arguments: a string's text, or compact JSON.
    ToolArguments = 0x16,
    /// One entry of the request's `tools`, as compact JSON.
    Tools = 0x17,
    /// A content part of a kind unknown to the caller, as compact JSON.
    Other = 0x18,
    /// An assistant's reasoning, where the client sends it back.
    Reasoning = 0x19,
}

impl Field {
    /// The two bytes that open it, made as one number: two writes of a byte would be waited for by the read of both.
    #[inline]
    fn mark(self) -> [u8; 2] {
        (u16::from(MARK) | u16::from(self as u8) << 8).to_le_bytes()
    }
}

/// Cuts canonical bytes into pieces as they come, and hashes each: a prompt's [`Chain`] is built by a [`ChainBuilder`]
/// where model and salt are known, and by [`Pieces`] where they are yet to come. A clone copies one chunk's buffer and
/// the keys so far.
///
/// Calls out of order (a push before any message) hash what they are given: the chain is then merely unlike any other.
#[derive(Clone, Debug)]
pub struct Cutter<S> {
    sink: S,
    bytes: u64,
    open: bool,
    /// What is open is a plain prompt.
    plain: bool,
    /// A field whose mark is not yet written: a field that stays empty leaves no trace.
    pending: Option<Field>,
    /// A field was not text; see [`Cutter::refers`].
    refers: bool,
    fill: usize,
    buffer: [u8; CHUNK_BYTES + SLACK],
}

/// Builds a chain from its beginning.
pub type ChainBuilder = Cutter<Links>;

/// The pieces of a prompt, hashed, but not yet a chain: clients name the model after the messages.
pub type Pieces = Cutter<Digests>;

/// A place between two messages; see [`Pieces::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pieces: usize,
    bytes: u64,
}

impl<S: Sink> Cutter<S> {
    fn onto(sink: S) -> Self {
        Self {
            sink,
            bytes: 0,
            open: false,
            plain: false,
            pending: None,
            refers: false,
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
        self.fill = 0;
    }

    /// Opens a message of this role. An open one is ended first.
    pub fn begin_message(&mut self, role: &str) {
        self.end_message();
        self.open = true;
        self.absorb(&[MARK, MARK_MESSAGE]);
        spelled(role, |piece| self.absorb(piece));
    }

    /// Opens a plain prompt (`/v1/completions`): one text, whose chunks never restart. Feed it with [`Self::push`]. Each of
    /// its pieces is a key: what the next turn repeats of this one ends anywhere within it.
    pub fn begin_prompt(&mut self) {
        self.end_message();
        self.open = true;
        self.plain = true;
        self.absorb(&[MARK, MARK_PROMPT]);
    }

    /// Opens a field of the message. It leaves no trace unless a byte follows.
    pub fn field(&mut self, field: Field) {
        self.refers |= matches!(field, Field::Image | Field::Media | Field::Other);
        self.pending = Some(field);
    }

    /// Canonical bytes of the open field. Any split of the same bytes gives the same chain.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(field) = self.pending.take() {
            self.absorb(&field.mark());
        }
        self.absorb(bytes);
    }

    /// [`Self::push`] of the first `length` bytes of a window of up to 64: copied as a whole, which takes no time to
    /// decide how.
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

    /// Text of the open field, in its [spelling](super::spell).
    pub fn push_text(&mut self, text: &str) {
        spelled(text, |piece| self.push(piece));
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
        // What goes on after a plain prompt goes on within its text.
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

    /// Whether a message or plain prompt was begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether some of it may be more than its bytes say: a medium, by its data or its address, or what is not understood.
    #[must_use]
    pub fn refers(&self) -> bool {
        self.refers
    }

    /// Canonical bytes taken in, those not yet part of a key included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends to the message's canonical bytes; each full chunk becomes a piece.
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

    /// Bytes that complete a chunk at least. All but the first are hashed where they lie.
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
    /// A chain for one model and cache salt. Nothing of another model or salt can ever match it.
    #[must_use]
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

    /// The keys so far: those of complete chunks and ended messages.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.sink.chain
    }

    /// The chain itself, for a caller that is done.
    #[must_use]
    pub fn into_chain(self) -> Chain {
        self.sink.chain
    }

    /// The key before this builder's first: `None` at a prompt's start; for a reply, where to attach its keys.
    #[must_use]
    pub fn parent(&self) -> Option<PrefixHash> {
        self.sink.parent
    }

    /// Whether this is a reply within the text that it follows, as a plain prompt's is: the next turn repeats neither the
    /// prompt's last key nor this reply's, unless their chunks happen to be full.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.sink.goes_on
    }

    /// The builder for the reply to this prompt, holding only the keys that the reply adds.
    ///
    /// After messages it opens an `assistant` message. Within an open plain prompt it goes on where the prompt stops,
    /// since the next request will repeat prompt and completion as one text: call it before [`Self::end_message`].
    #[must_use]
    pub fn reply(&self) -> Self {
        self.continued(self.sink.reply(self.open), self.bytes)
    }
}

impl<S: Sink> Cutter<S> {
    /// A reply that goes on from here.
    fn continued(&self, links: Links, bytes: u64) -> ChainBuilder {
        let mut reply = Cutter {
            sink: links,
            bytes,
            open: self.open,
            plain: self.plain,
            pending: None,
            refers: false,
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
    /// No pieces.
    #[must_use]
    pub fn new() -> Self {
        Self::onto(Digests::default())
    }

    /// Where the next message begins; an open one is ended.
    pub fn mark(&mut self) -> Mark {
        self.end_message();
        Mark {
            pieces: self.sink.0.len(),
            bytes: self.bytes,
        }
    }

    /// Takes back what came since the mark: its fields turned out to stand in another order than the form's.
    pub fn rewind(&mut self, to: Mark) {
        let refers = self.refers;
        self.reset();
        self.refers = refers;
        self.bytes = to.bytes;
        self.sink.0.truncate(to.pieces);
    }

    /// Adds the messages of `more`, all of them ended, after these.
    pub fn extend_from(&mut self, more: &Self) {
        self.end_message();
        let before = self.bytes;
        self.sink.extend_from(&more.sink, before);
        self.bytes += more.bytes;
    }

    /// Drops the pieces and keeps their memory, unless it is more than `kept` pieces take.
    pub fn clear(&mut self, kept: usize) {
        self.reset();
        self.sink.0.clear();
        self.sink.0.shrink_to(kept);
    }

    /// The chain that these pieces make after those of `before`, and the builder for the reply to it: what a
    /// [`ChainBuilder`] that was told of the same would have. What is open is ended.
    ///
    /// Allocates the chain, exactly as large as it is, and nothing else.
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
        // Before the end: a plain prompt's last, short chunk is not a part of the next prompt, which goes on within it.
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
