//! How far into a chunk a growing plain text is cached.
//!
//! The chunks of a plain prompt never restart, so what a worker holds extends up to a chunk past the last full key,
//! which the next turn repeats. Stored under that key, if it lies within the reply, are its position in tokens, the
//! counted end of the turn, and the turn's last, short key, by which the rest is looked up. If the reply is shorter,
//! the match ends with the key, too early by a block or two.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::RwLock;
use policy::fingerprint::{CHUNK_BYTES, Chain};
use policy::ids::PrefixHash;

use super::CountedTurn;

const TAILS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Number of a prompt's keys that are looked up, the last ones first: as many as a turn is likely to add.
const TRIED: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Number of leading keys of the prompt up to the last shared one.
    pub(super) keys: usize,
    /// Tokens up to the end of that key.
    pub(super) at: u64,
    /// The turn's key after that one, if there is one.
    pub(super) end: Option<PrefixHash>,
    pub(super) bytes: u64,
    /// Counted tokens up to the end of the turn.
    pub(super) tokens: u64,
}

/// Ends of the most recent plain prompts, by the last full key of their replies.
#[derive(Debug)]
pub(super) struct PlainPromptEnds(RwLock<LruCache<PrefixHash, Tail>>);

impl Default for PlainPromptEnds {
    fn default() -> Self {
        Self(RwLock::new(LruCache::new(TAILS)))
    }
}

/// Returns the index in a plain prompt's reply of the last key with a full chunk, which only prompts that repeat the
/// reply have. `None` for a reply to messages, and for one that fills no chunk.
pub(super) fn last_full(goes_on: bool, reply: &Chain) -> Option<usize> {
    let is_full = |end: &u64| end.is_multiple_of(CHUNK_BYTES as u64);
    reply.ends().iter().rposition(is_full).filter(|_| goes_on)
}

impl PlainPromptEnds {
    pub(super) fn counted(&self, turn: &CountedTurn<'_>) {
        let Some((_, reply)) = turn.reply else { return };
        let Some(at) = last_full(turn.goes_on, reply) else {
            return;
        };
        let prompt = (turn.prompt.span(turn.prompt.len()), turn.prompt_tokens);
        let bytes = reply.span(reply.len());
        let said =
            reply.ends()[at].saturating_sub(prompt.0) as f64 / bytes.saturating_sub(prompt.0).max(1) as f64;
        let tail = Tail {
            keys: 0,
            at: prompt.1 + (turn.reply_tokens as f64 * said).round() as u64,
            end: reply.hashes().get(at + 1).copied(),
            bytes,
            tokens: turn.prompt_tokens + turn.reply_tokens,
        };
        self.0.write().put(reply.hashes()[at], tail);
    }

    /// Returns the end of the turn that this prompt continues, if known.
    pub(super) fn of(&self, prompt: &Chain) -> Option<Tail> {
        let tails = self.0.read();
        if tails.is_empty() {
            return None;
        }
        let keys = prompt.hashes().iter().enumerate().rev().take(TRIED);
        let (at, tail) = keys
            .into_iter()
            .find_map(|(at, key)| Some((at, tails.peek(key)?)))?;
        let keys = at + 1;
        (tail.bytes <= prompt.span(prompt.len())).then_some(Tail { keys, ..*tail })
    }
}

#[cfg(test)]
mod tests {
    use policy::fingerprint::ChainBuilder;
    use policy::ids::WorkerId;

    use super::*;

    fn plain(text: &[u8]) -> (Chain, ChainBuilder) {
        let mut builder = ChainBuilder::new("m", None);
        builder.begin_prompt();
        builder.push(text);
        let reply = builder.reply();
        builder.end_message();
        (builder.into_chain(), reply)
    }

    /// Serves the text with this reply, at four bytes per token.
    fn serve(tails: &PlainPromptEnds, text: &[u8], said: &[u8]) -> Chain {
        let (prompt, mut reply) = plain(text);
        reply.push(said);
        reply.end_message();
        tails.counted(&CountedTurn {
            model: "m",
            worker: WorkerId(0),
            session: None,
            since: 0,
            prompt: &prompt,
            media: &[],
            reply: Some((reply.parent(), reply.chain())),
            goes_on: reply.goes_on(),
            cached: None,
            prompt_tokens: prompt.span(prompt.len()) / 4,
            reply_tokens: said.len() as u64 / 4,
            ended: false,
        });
        reply.chain().clone()
    }

    #[test]
    fn who_goes_on_from_a_reply_finds_its_end() {
        let tails = PlainPromptEnds::default();
        let mut text = vec![b'q'; 398];
        let reply = serve(&tails, &text, &[b'r'; 400]);
        text.extend([b'r'; 400]);
        text.extend([b's'; 500]);
        let found = tails.of(&plain(&text).0).unwrap();
        let expected = Tail {
            keys: 3,
            at: 192,
            end: reply.last(),
            bytes: 800,
            tokens: 200,
        };
        assert_eq!(found, expected);
        assert_eq!(tails.of(&plain(&[b'q'; 900]).0), None);
        let cut = plain(&text[..780]).0;
        assert_eq!(tails.of(&cut), None, "it does not repeat the whole reply");
    }

    #[test]
    fn a_prompt_that_fills_its_last_chunk_is_a_plain_prompt_too() {
        let tails = PlainPromptEnds::default();
        let mut text = vec![b'q'; 510];
        let reply = serve(&tails, &text, &[b'r'; 300]);
        text.extend([b'r'; 300]);
        text.extend([b's'; 100]);
        let found = tails.of(&plain(&text).0).unwrap();
        assert_eq!((found.keys, found.end, found.bytes), (3, reply.last(), 812));
    }

    #[test]
    fn a_reply_within_a_chunk_is_found_by_nobody() {
        let tails = PlainPromptEnds::default();
        let mut text = vec![b'q'; 300];
        serve(&tails, &text, &[b'r'; 40]);
        text.extend([b'r'; 400]);
        assert_eq!(tails.of(&plain(&text).0), None);
    }
}
