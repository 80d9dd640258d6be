//! A reply as it gathers, hashed as the next turn's prompt will repeat it.
//!
//! The client puts an answer's deltas together and sends the message back; its fingerprint there (`fingerprint/message`)
//! must be the one that was found here, from the deltas. Three things make that more than hashing what passes:
//!
//! - text may go on after a tool call has begun, and calls may come interleaved, each fragment with its call's index. In
//!   the canonical form text comes first, then the calls by index. So text is hashed as it passes and calls are *held*
//!   until the end, within [`MAX_HELD_BYTES`]. A reply with more is not learned, which costs the next turn's prediction and
//!   nothing else;
//! - a call's id and name come before its arguments and count after them;
//! - clients differ on what two ids of one call make, so such a reply is not learned either.
//!
//! Reasoning comes before text, in an engine's cache as in the canonical form. A client that sends it back, as tools with
//! interleaved thinking need, is found to repeat the whole reply; one that does not, as most, to leave off where the
//! reasoning began. So it is with the worker's cache, whose next prompt has no reasoning there either. Reasoning after
//! text has no place in a message: such a reply is not learned.
//!
//! Rejected: *hashing the first call as it passes* and holding only what comes out of order. It spares memory for
//! milliseconds, and a copy of the hash would have to be kept beside it, for text that comes after all.

use policy::fingerprint::{ChainBuilder, Field};

use super::json::Scanner;
use super::routes::Endpoint;

/// Most calls of one reply. OpenAI's API takes 128 tools.
const MAX_CALLS: usize = 128;
/// Most bytes of calls that are held: some 250,000 tokens, more than engines generate at once.
const MAX_HELD_BYTES: usize = 1 << 20;

/// What an event of an answer adds to its first choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The next reasoning.
    Reasoning(&'a str),
    /// The next text.
    Text(&'a str),
    /// A fragment of a call.
    Call {
        /// Its place among the calls; `None` for the one of the older form, `function_call`.
        index: Option<u64>,
        /// Its id; empty if not said here. So are the others.
        id: &'a str,
        /// The function's name.
        name: &'a str,
        /// The next part of its arguments.
        arguments: &'a str,
    },
    /// Something that the next prompt does not repeat, or that was not understood.
    Unrepeated,
}

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

/// What was hashed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Reasoning,
    Text,
}

/// A reply, as far as it has passed.
#[derive(Debug)]
pub struct Reply {
    hash: ChainBuilder,
    at: At,
    /// By index.
    calls: Vec<Call>,
    held: usize,
    lost: bool,
    /// The next turn has a call's arguments as an object, not as its text.
    objects: bool,
}

impl Reply {
    /// A reply to the prompt that this hash goes on from.
    #[must_use]
    pub fn new(hash: ChainBuilder) -> Self {
        Self {
            hash,
            at: At::Start,
            calls: Vec::new(),
            held: 0,
            lost: false,
            objects: false,
        }
    }

    /// The same, to a prompt of this endpoint. Anthropic's clients read the text of a call's arguments and send back what
    /// they read: JSON, without the white space that it was generated with.
    #[must_use]
    pub fn at(endpoint: Endpoint, hash: ChainBuilder) -> Self {
        Self {
            objects: endpoint == Endpoint::Messages,
            ..Self::new(hash)
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: Piece<'_>) {
        if self.lost {
            return;
        }
        let taken = match piece {
            Piece::Reasoning(_) if self.at == At::Text => false,
            Piece::Reasoning(text) => {
                if std::mem::replace(&mut self.at, At::Reasoning) == At::Start {
                    self.hash.field(Field::Reasoning);
                }
                self.hash.push_text(text);
                true
            }
            Piece::Text(text) => {
                if std::mem::replace(&mut self.at, At::Text) == At::Reasoning {
                    self.hash.field(Field::Text);
                }
                self.hash.push_text(text);
                true
            }
            Piece::Call {
                index,
                id,
                name,
                arguments,
            } => self.call(index, id, name, arguments),
            Piece::Unrepeated => false,
        };
        if !taken {
            self.lost = true;
            self.calls = Vec::new();
        }
    }

    fn call(&mut self, index: Option<u64>, id: &str, name: &str, arguments: &str) -> bool {
        let at = match self.calls.binary_search_by_key(&index, |call| call.index) {
            Ok(at) => at,
            Err(_) if self.calls.len() == MAX_CALLS => return false,
            Err(at) => {
                let call = Call {
                    index,
                    id: String::new(),
                    name: String::new(),
                    arguments: String::new(),
                };
                self.calls.insert(at, call);
                at
            }
        };
        let call = &mut self.calls[at];
        let first = |known: &String, said: &str| if known.is_empty() { said.len() } else { 0 };
        self.held += first(&call.id, id) + first(&call.name, name) + arguments.len();
        let taken = self.held <= MAX_HELD_BYTES && same(&mut call.id, id) && same(&mut call.name, name);
        if taken {
            call.arguments.push_str(arguments);
        }
        taken
    }

    /// The keys that the next turn's prompt goes through, if it can repeat this reply: the builder, its message ended.
    #[must_use]
    pub fn finish(self) -> Option<ChainBuilder> {
        let Self {
            mut hash,
            calls,
            objects,
            ..
        } = self;
        for call in &calls {
            hash.field(Field::ToolArguments);
            if objects {
                let text = if call.arguments.is_empty() {
                    "{}"
                } else {
                    &call.arguments
                };
                Scanner::new(text.as_bytes())
                    .compact(&mut |bytes: &[u8]| hash.push(bytes))
                    .ok()?;
            } else {
                hash.push_text(&call.arguments);
            }
            hash.field(Field::ToolName);
            hash.push_text(&call.name);
            hash.field(Field::ToolId);
            hash.push_text(&call.id);
        }
        hash.end_message();
        (!self.lost).then_some(hash)
    }
}

/// What is said once, or again as it was.
fn same(known: &mut String, said: &str) -> bool {
    if known.is_empty() {
        known.push_str(said);
    }
    said.is_empty() || known == said
}

#[cfg(test)]
mod tests;
