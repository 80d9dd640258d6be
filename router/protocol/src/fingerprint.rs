//! Computes a prompt's chain of prefix hashes, in the canonical form of [`policy::fingerprint`].
//!
//! One pass checks the JSON and hashes the prompt, without copying text. A [`Draft`] collects the digests of its pieces
//! and builds the chain once model and salt are known, because clients write both after the messages.

use std::num::NonZeroU32;
use std::sync::Arc;

use policy::fingerprint::{Chain, ChainBuilder, Field, MediaPart, Pieces, push_token_blocks, token_root};

use super::json::{Malformed, Out, Scanner};

mod completion;
mod media;
mod message;
mod once;

pub(crate) use message::message;

const TOKEN_KEY_TOKENS: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Number of pieces, and of token ids, whose memory is kept between requests: enough for a prompt of 4 MB.
const KEPT: usize = 16 << 10;

/// A fingerprinted prompt.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    /// Keys of the prompt. Shared with the attempt, the learner and the capture, which outlive the turn.
    pub chain: Arc<Chain>,
    /// Length of the prompt, in the unit of the chain's ends.
    pub extent: Extent,
    /// Media of the prompt, whose bytes do not tell their number of tokens.
    pub media: Vec<MediaPart>,
    /// State of the hash, to continue with the reply, if the next turn can repeat the reply.
    pub reply: Option<ChainBuilder>,
}

/// Length of a prompt, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Number of canonical bytes.
    Bytes(u64),
    /// Number of tokens.
    Tokens(u64),
}

/// A prompt as read so far. Its memory is reused across requests. Methods fail if the input is not JSON.
#[derive(Debug, Default)]
pub struct Draft {
    tools: Pieces,
    system: Pieces,
    messages: Pieces,
    is_chat: bool,
    text: Pieces,
    tokens: Vec<u32>,
    completion: Completion,
    /// Whether the request declares tools.
    pub(crate) has_tools: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Completion {
    #[default]
    None,
    Text,
    Tokens,
}

impl Draft {
    /// Discards the previous request's prompt.
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
        self.has_tools = false;
    }

    /// Reads a list of messages in OpenAI's or Anthropic's form. Of a member that is given twice, the last value
    /// applies, here and below ([`once`]).
    pub(crate) fn messages(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.conversation(scanner, message)
    }

    /// Reads a list of messages of which `read` reads one.
    pub(crate) fn conversation(
        &mut self,
        scanner: &mut Scanner<'_>,
        mut read: impl FnMut(&mut Scanner<'_>, &mut Pieces) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.messages.clear(KEPT);
        self.is_chat = scanner.peek() == Some(b'[');
        let pieces = &mut self.messages;
        scanner.array(|scanner| read(scanner, pieces))?;
        self.messages.end_message();
        Ok(())
    }

    /// Reads the text of a lone message of the user.
    pub(crate) fn user_text(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.messages.clear(KEPT);
        self.is_chat = true;
        self.messages.begin_message("user");
        message::content(scanner, &mut self.messages, &mut false)?;
        self.messages.end_message();
        Ok(())
    }

    /// Reads a system prompt outside the messages.
    pub(crate) fn system(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.system.clear(KEPT);
        if !matches!(scanner.peek(), Some(b'"' | b'[')) {
            return scanner.skip().map(drop);
        }
        self.system.begin_message("system");
        message::content(scanner, &mut self.system, &mut false)?;
        self.system.end_message();
        Ok(())
    }

    /// Reads the tools.
    pub(crate) fn tools(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.tools.clear(KEPT);
        self.has_tools = scanner.peek() == Some(b'[');
        message::tools(scanner, &mut self.tools)
    }

    /// Reads a prompt without roles: a text or token ids.
    pub(crate) fn prompt(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        self.text.clear(KEPT);
        self.tokens.clear();
        self.completion = completion::prompt(scanner, &mut self.text, &mut self.tokens)?;
        Ok(())
    }

    /// Returns whether the prompt may have more tokens than bytes: it names media or has unknown parts.
    pub fn refers(&self) -> bool {
        self.messages.refers() || self.system.refers()
    }

    /// Returns the fingerprint, allocating only the chain. A prompt of unknown form has no keys and length 0.
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
                    media: Vec::new(),
                    reply: None,
                }
            }
            Completion::None => Fingerprint {
                chain: Arc::default(),
                extent: Extent::Bytes(0),
                media: Vec::new(),
                reply: None,
            },
        }
    }
}

/// Output of a scanner that is hashed.
pub(crate) struct Hashed<'a>(pub(crate) &'a mut Pieces);

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
    let media = pieces.media_after(before);
    let (chain, mut reply) = pieces.rooted(before, model, salt);
    if is_chat {
        reply.field(Field::Text);
    }
    Fingerprint {
        chain: Arc::new(chain),
        extent: Extent::Bytes(before.bytes() + pieces.bytes()),
        media,
        reply: Some(reply),
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
