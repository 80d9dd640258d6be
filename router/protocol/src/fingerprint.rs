//! From a prompt to its chain of prefix hashes, in the canonical form that [`policy::fingerprint`] fixes.
//!
//! The prompt is hashed while its JSON is checked, in one pass: a [`Draft`] takes the digests of its pieces, and makes
//! them a chain when model and salt are known, since clients write both after the messages. No text is copied, and how
//! the JSON was written (white space, escapes, order of members around a message's role) does not reach the chain.

use std::num::NonZeroU32;
use std::sync::Arc;

use policy::fingerprint::{Chain, ChainBuilder, Field, Pieces, push_token_blocks, token_root};

use super::json::{Malformed, Out, Scanner};

mod completion;
mod message;
mod once;

/// Tokens per key of a prompt that comes as token ids.
const TOKEN_KEY_TOKENS: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Pieces (and token ids) whose memory is kept from one request to the next: those of a prompt of 4 MB.
const KEPT: usize = 16 << 10;

/// A fingerprinted prompt.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    /// Its keys. Shared: the attempt, what it teaches and what is captured of it look at them after the turn itself.
    pub chain: Arc<Chain>,
    /// What the chain's ends count, and how long the whole prompt is in it.
    pub extent: Extent,
    /// Hashes the reply as it passes, where a reply can be found again in the next turn.
    pub reply: Option<ChainBuilder>,
}

/// The length of a prompt, in what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Canonical bytes.
    Bytes(u64),
    /// Tokens.
    Tokens(u64),
}

/// A prompt as far as it was read. Its memory is reused from request to request.
#[derive(Debug, Default)]
pub struct Draft {
    tools: Pieces,
    system: Pieces,
    messages: Pieces,
    is_chat: bool,
    text: Pieces,
    tokens: Vec<u32>,
    completion: Completion,
}

/// What `prompt` was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Completion {
    /// Absent, or not understood.
    #[default]
    None,
    Text,
    Tokens,
}

impl Draft {
    /// Forgets the last request's prompt.
    pub fn clear(&mut self) {
        for pieces in [
            &mut self.tools,
            &mut self.system,
            &mut self.messages,
            &mut self.text,
        ] {
            pieces.clear(KEPT);
        }
        self.tokens.clear();
        self.tokens.shrink_to(KEPT);
        self.is_chat = false;
        self.completion = Completion::None;
    }

    /// Takes in `messages`. Where a member that means something is given twice, the last one counts, here and below ([`once`]).
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn messages(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.messages.clear(KEPT);
        self.is_chat = scanner.peek() == Some(b'[');
        let pieces = &mut self.messages;
        scanner.array(|scanner| message::message(scanner, pieces))?;
        self.messages.end_message();
        Ok(())
    }

    /// Takes in a system prompt that stands beside the messages: `system`, `instructions`.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn system(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.system.clear(KEPT);
        if !matches!(scanner.peek(), Some(b'"' | b'[')) {
            return scanner.skip().map(drop);
        }
        self.system.begin_message("system");
        message::content(scanner, &mut self.system, &mut false)?;
        self.system.end_message();
        Ok(())
    }

    /// Takes in `input`: what the user says, or a list of items, most of them messages.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn input(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.messages.clear(KEPT);
        self.is_chat = matches!(scanner.peek(), Some(b'"' | b'['));
        let pieces = &mut self.messages;
        if scanner.peek() == Some(b'"') {
            pieces.begin_message("user");
            message::content(scanner, pieces, &mut false)?;
        } else {
            scanner.array(|scanner| message::item(scanner, pieces))?;
        }
        self.messages.end_message();
        Ok(())
    }

    /// Takes in `tools`.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn tools(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.tools.clear(KEPT);
        message::tools(scanner, &mut self.tools)
    }

    /// Takes in `prompt`.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn prompt(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.text.clear(KEPT);
        self.tokens.clear();
        self.completion = completion::prompt(scanner, &mut self.text, &mut self.tokens)?;
        Ok(())
    }

    /// Whether the prompt may be longer in tokens than in bytes: it names media, or has parts that are not understood.
    #[must_use]
    pub fn refers(&self) -> bool {
        self.messages.refers() || self.system.refers()
    }

    /// The fingerprint of what was taken in. A prompt that the router does not understand has no keys and no length.
    ///
    /// Allocates the chain, which is the caller's to keep, and nothing else.
    #[must_use]
    pub fn finish(&mut self, model: &str, salt: Option<&str>) -> Fingerprint {
        match self.completion {
            _ if self.is_chat => {
                self.tools.extend_from(&self.system);
                text(&mut self.messages, &self.tools, model, salt)
            }
            Completion::Text => text(&mut self.text, &Pieces::new(), model, salt),
            Completion::Tokens => {
                let mut chain = Chain::new();
                push_token_blocks(
                    token_root(model, salt),
                    &self.tokens,
                    TOKEN_KEY_TOKENS,
                    &mut chain,
                );
                Fingerprint {
                    chain: Arc::new(chain),
                    extent: Extent::Tokens(self.tokens.len() as u64),
                    reply: None,
                }
            }
            Completion::None => Fingerprint {
                chain: Arc::default(),
                extent: Extent::Bytes(0),
                reply: None,
            },
        }
    }
}

/// A prompt's pieces, taking what a scanner hands on.
struct Hashed<'a>(&'a mut Pieces);

impl Out for Hashed<'_> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    #[inline]
    fn short<const N: usize>(&mut self, window: &[u8; N], length: usize) {
        self.0.push_short(window, length);
    }
}

fn text(pieces: &mut Pieces, before: &Pieces, model: &str, salt: Option<&str>) -> Fingerprint {
    let is_chat = !pieces.is_open();
    let (chain, mut reply) = pieces.rooted(before, model, salt);
    if is_chat {
        reply.field(Field::Text);
    }
    Fingerprint {
        chain: Arc::new(chain),
        extent: Extent::Bytes(before.bytes() + pieces.bytes()),
        reply: Some(reply),
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
