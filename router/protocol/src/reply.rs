//! Hashes a streamed reply in the form in which the next turn's prompt repeats it.
//!
//! The fingerprint of a reply must equal that of the message that the client sends back (`fingerprint/message`), where
//! calls follow the text in the order of their indices. So text is hashed as it passes, and calls, whose fragments may
//! interleave, are *held* until the end, up to [`MAX_HELD_BYTES`]. `docs/fingerprints.md` (Replies, Reasoning) says
//! which replies are not learned; this affects only the prediction of the next turn.

use policy::fingerprint::{ChainBuilder, Field};

use super::api::Endpoint;
use super::json::Scanner;

/// Maximum number of calls of one reply. OpenAI's API accepts 128 tools.
const MAX_CALLS: usize = 128;
/// Maximum size of held calls in bytes: about 250,000 tokens, more than engines generate in one response.
const MAX_HELD_BYTES: usize = 1 << 20;

/// Content that one event adds to the first choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// More reasoning.
    Reasoning(&'a str),
    /// More text.
    Text(&'a str),
    /// A fragment of a call.
    Call {
        /// Index of the call; `None` for the older `function_call`.
        index: Option<u64>,
        /// Id of the call; empty if not in this fragment, like the other members.
        id: &'a str,
        /// Name of the function.
        name: &'a str,
        /// More of the arguments.
        arguments: &'a str,
    },
    /// Content that the next prompt does not repeat, or unknown content.
    Unrepeated,
}

#[derive(Debug)]
struct ReplyCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Reasoning,
    Text,
}

/// A reply as received so far.
#[derive(Debug)]
pub struct ReplyBuilder {
    hash: ChainBuilder,
    at: At,
    /// Calls so far, ordered by index.
    calls: Vec<ReplyCall>,
    held: usize,
    lost: bool,
    /// Whether the next turn sends a call's arguments as an object instead of text: as compact JSON here.
    objects: bool,
}

impl ReplyBuilder {
    /// Creates a reply that continues this hash of the prompt.
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

    /// Creates a reply at this endpoint.
    pub fn at(endpoint: Endpoint, hash: ChainBuilder) -> Self {
        Self {
            objects: endpoint.facts().calls_are_objects,
            ..Self::new(hash)
        }
    }

    /// Adds the next piece.
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
                let call = ReplyCall {
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

    /// Returns the hash with its message ended; `None` if the next turn cannot repeat this reply.
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

/// Stores a value that is given once. Returns whether repetitions agree.
fn same(known: &mut String, said: &str) -> bool {
    if known.is_empty() {
        known.push_str(said);
    }
    said.is_empty() || known == said
}

#[cfg(test)]
mod tests;
