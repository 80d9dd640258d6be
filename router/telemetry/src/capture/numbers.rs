//! Converts text keys to the blocks of a trace.
//!
//! A prompt's keys end at byte offsets of messages and chunks; a trace has blocks of equal size in tokens, whose ids
//! stand for the whole prefix. Each key gets a position in tokens, and a block gets the number of the first key that
//! reaches its end.
//!
//! A key's position must not depend on the prompt, or prompts with a common prefix would share no block. It is fixed
//! when the key is first seen, by interpolation between the last known key and the prompt's end, whose position the
//! worker counted. A block's number is looked up with that of the preceding block, so an id always has the same
//! predecessor, even after evictions. Memory is bounded by evicting the least recently used entries; an evicted
//! conversation that returns gets new numbers.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use lru::LruCache;
use policy::ids::PrefixHash;
use policy::recent::Recent;
use serde::Serialize;

use super::Record;

/// Tokens per block: about one chunk of text, the resolution of the keys.
pub const BLOCK_TOKENS: u32 = 64;
const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Remembered positions of keys and numbers of blocks: 30 million tokens of distinct text.
const KEYS: NonZeroUsize = NonZeroUsize::new(500_000).unwrap();
const MODELS: usize = 256;
pub(super) const MODEL_BYTES: usize = 64;
pub(super) const OTHER_MODEL: &str = "other";

/// Maximum tokens of a prompt beyond one per byte, for media.
const MOST_UNSEEN: u64 = 1 << 20;

const ROOT: u64 = u64::MAX;

/// Returns a prompt's tokens, capped because each block costs time and memory.
pub(super) fn prompt_tokens(record: &Record<'_>) -> u64 {
    record.tokens[0].min(record.units.saturating_add(MOST_UNSEEN))
}

/// A line of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Arrival, in seconds since the router started.
    pub ts: f64,
    /// Number of the conversation.
    pub conv: u64,
    /// Number of the turn in the conversation, from 0.
    pub turn: u32,
    /// Tokens that the prompt adds to the history.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that repeat earlier turns.
    pub history_tokens: u64,
    /// Tokens of the response.
    pub response_tokens: u64,
    /// The prompt's full blocks: first number, count, first number, count, …
    pub block_runs: Vec<u64>,
    /// Class of the turn's objective; absent for the configured one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// Objective for the time to first token.
    pub objective_ms: f64,
    /// Requested model; `other` beyond the bounds on names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Worker that served the turn.
    pub worker: String,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Whether the response came in one piece, so that `ttft_ms` is the time of all of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Time from arrival to the end of the response.
    pub took_ms: f64,
    /// Predicted time to first token.
    pub predicted_ttft_ms: f64,
    /// Cached tokens, as the worker reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Predicted cached tokens.
    pub predicted_cached_tokens: u64,
    /// Whether the tokens of prompt and response are estimates.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// End of the response: `ok`, `broken` (by the worker), `aborted` (by the client), `deadline` (the request's own
    /// deadline passed) or `cut` (the router shut down).
    pub outcome: String,
}

impl Line {
    pub(super) fn write(&self, trace: &mut Vec<u8>) {
        let start = trace.len();
        // Numbers and text always serialise.
        if serde_json::to_writer(&mut *trace, self).is_err() {
            trace.truncate(start);
            return;
        }
        trace.push(b'\n');
    }
}

#[derive(Debug)]
struct NumberedConversation {
    number: u64,
    turns: u32,
    total: u64,
}

/// The numbers of conversations and blocks that were assigned so far.
#[derive(Debug)]
pub struct Numbers {
    conversations: LruCache<u64, NumberedConversation>,
    /// Position of a key's end, in tokens.
    ends: Recent<PrefixHash, u64>,
    /// Number of a block, by the preceding block and the key that covers it.
    blocks: Recent<(u64, PrefixHash), u64>,
    models: BTreeSet<String>,
    next_conversation: u64,
    next_block: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self::remembering(CONVERSATIONS, KEYS)
    }
}

impl Numbers {
    /// Creates a numbering with these capacities.
    #[must_use]
    pub fn remembering(conversations: NonZeroUsize, keys: NonZeroUsize) -> Self {
        Self {
            conversations: LruCache::new(conversations),
            ends: Recent::new(keys.get()),
            blocks: Recent::new(keys.get()),
            models: BTreeSet::new(),
            next_conversation: 0,
            next_block: 0,
        }
    }

    /// Returns the line of a turn that arrived `ts` seconds after the start. Turns must be passed in order of arrival.
    pub fn line(&mut self, ts: f64, record: &Record<'_>) -> Line {
        let (prompt, response) = (prompt_tokens(record), record.tokens[1]);
        let (ends, known) = self.places(record, prompt);
        let block_runs = self.blocks(record, &ends, prompt);
        let (conv, turn, history) =
            self.conversation(record.conversation, known.min(prompt), prompt + response);
        Line {
            ts: round(ts, 1e6),
            conv,
            turn,
            prompt_tokens: prompt - history,
            history_tokens: history,
            response_tokens: response,
            block_runs,
            class: record.class.clone().into_owned(),
            objective_ms: round(record.objective.0, 1e3),
            model: self.model(&record.model),
            worker: record.worker.clone().into_owned(),
            ttft_ms: round(record.ttft.0, 1e3),
            whole: record.whole,
            took_ms: round(record.took.0, 1e3),
            predicted_ttft_ms: round(record.predicted_ttft.0, 1e3),
            cached_tokens: record.reported_cached,
            predicted_cached_tokens: record.predicted_cached.0,
            estimated: !record.counted,
            outcome: record.outcome.clone().into_owned(),
        }
    }

    /// Returns the keys' positions in tokens and the known part of the prompt. Fixes the positions of new keys.
    fn places(&mut self, record: &Record<'_>, prompt: u64) -> (Vec<u64>, u64) {
        let keys = record.prompt.hashes();
        let mut ends: Vec<u64> = Vec::with_capacity(keys.len());
        for key in keys {
            match self.ends.touch(*key) {
                Some(end) => ends.push(end),
                None => break,
            }
        }
        let known = ends.last().copied().unwrap_or(0);
        let from = Anchor {
            unit: record.prompt.span(ends.len()),
            tokens: known,
        };
        let to = Anchor {
            unit: record.units.max(record.prompt.span(keys.len())),
            tokens: prompt,
        };
        for (key, unit) in keys.iter().zip(record.prompt.ends()).skip(ends.len()) {
            let end = between(from, to, *unit);
            self.ends.put(*key, end);
            ends.push(end);
        }
        if let Some(reply) = &record.reply {
            let to_end = Anchor {
                unit: reply.span(reply.len()),
                tokens: prompt + record.tokens[1],
            };
            for (key, unit) in reply.hashes().iter().zip(reply.ends()) {
                let end = between(to, to_end, *unit);
                self.ends.touch_or_put(*key, end);
            }
        }
        (ends, known)
    }

    fn blocks(&mut self, record: &Record<'_>, ends: &[u64], prompt: u64) -> Vec<u64> {
        let mut runs: Vec<u64> = Vec::new();
        let (mut before, mut covering) = (ROOT, 0);
        for block in 1..=prompt / u64::from(BLOCK_TOKENS) {
            let target = block * u64::from(BLOCK_TOKENS);
            covering += ends[covering..].iter().take_while(|end| **end < target).count();
            let fresh = self.next_block;
            let number = match record.prompt.hashes().get(covering) {
                Some(key) => self.blocks.touch_or_put((before, *key), fresh),
                // No other prompt shares text after the last key.
                None => fresh,
            };
            self.next_block += u64::from(number == fresh);
            match runs.as_mut_slice() {
                [.., first, count] if *first + *count == number => *count += 1,
                _ => runs.extend([number, 1]),
            }
            before = number;
        }
        runs
    }

    fn conversation(&mut self, key: Option<u64>, known: u64, total: u64) -> (u64, u32, u64) {
        if let Some(conversation) = key.and_then(|key| self.conversations.get_mut(&key)) {
            let history = known.min(conversation.total);
            let turn = conversation.turns;
            conversation.turns += 1;
            conversation.total = total;
            return (conversation.number, turn, history);
        }
        let number = self.next_conversation;
        self.next_conversation += 1;
        if let Some(key) = key {
            let begun = NumberedConversation {
                number,
                turns: 1,
                total,
            };
            self.conversations.put(key, begun);
        }
        (number, 0, 0)
    }

    /// Returns the model's name, or `other` beyond the limits, since clients choose names.
    fn model(&mut self, name: &str) -> String {
        if !self.models.contains(name) {
            if self.models.len() >= MODELS || name.len() > MODEL_BYTES {
                return OTHER_MODEL.to_owned();
            }
            self.models.insert(name.to_owned());
        }
        name.to_owned()
    }
}

/// A unit of text whose position in tokens is known.
#[derive(Clone, Copy)]
struct Anchor {
    unit: u64,
    tokens: u64,
}

fn between(from: Anchor, to: Anchor, unit: u64) -> u64 {
    let span = to.unit.saturating_sub(from.unit);
    if span == 0 {
        return from.tokens.max(to.tokens);
    }
    let tokens = to.tokens.saturating_sub(from.tokens);
    let part = u128::from(unit.saturating_sub(from.unit).min(span)) * u128::from(tokens);
    from.tokens + (part / u128::from(span)) as u64
}

fn round(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}
