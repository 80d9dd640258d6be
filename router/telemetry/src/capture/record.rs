//! The record of a completed turn, and its encoding in memory.

use std::borrow::Cow;

use bytes::{Buf, BufMut};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

use super::numbers::{MODEL_BYTES, OTHER_MODEL};

const NUMBERS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrivalOrder {
    /// Microseconds of the router's clock.
    pub(super) at_us: u64,
    /// Orders turns that arrived in the same microsecond.
    pub(super) sequence: u64,
}

pub(super) fn micros(arrived: Millis) -> u64 {
    (arrived.0.max(0.0) * 1e3) as u64
}

/// A turn with at least part of a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<'a> {
    /// Key of the conversation; a turn without one is a separate conversation.
    pub conversation: Option<u64>,
    /// Class of the objective; empty for the configured one.
    pub class: Cow<'a, str>,
    pub model: Cow<'a, str>,
    /// Objective for the time to first token.
    pub objective: Millis,
    /// Keys of the prompt.
    pub prompt: Cow<'a, Chain>,
    /// Length of the prompt in the unit of the keys' ends: bytes or tokens.
    pub units: u64,
    /// Keys of the reply, where the next turn can repeat it.
    pub reply: Option<Cow<'a, Chain>>,
    /// Tokens of prompt and response.
    pub tokens: [u64; 2],
    /// Whether the worker counted the tokens; otherwise they are estimates.
    pub counted: bool,
    /// Worker that served the turn.
    pub worker: Cow<'a, str>,
    /// Time from the request's last byte to its first token.
    pub ttft: Millis,
    /// Whether the response came in one piece, so that `ttft` is the time of all of it.
    pub whole: bool,
    /// Time from the request's last byte to the end of the response.
    pub took: Millis,
    /// Predicted time to first token.
    pub predicted_ttft: Millis,
    /// Predicted cached tokens.
    pub predicted_cached: Tokens,
    /// Cached tokens, as the worker reported.
    pub reported_cached: Option<u64>,
    /// Outcome of the turn, as in the metrics.
    pub outcome: Cow<'a, str>,
}

impl Record<'_> {
    /// Copies all borrowed data.
    #[must_use]
    pub fn into_owned(self) -> Record<'static> {
        let chain = |chain: Cow<'_, Chain>| Cow::Owned(chain.into_owned());
        let text = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Record {
            conversation: self.conversation,
            class: text(self.class),
            model: text(self.model),
            objective: self.objective,
            prompt: chain(self.prompt),
            units: self.units,
            reply: self.reply.map(chain),
            tokens: self.tokens,
            counted: self.counted,
            worker: text(self.worker),
            ttft: self.ttft,
            whole: self.whole,
            took: self.took,
            predicted_ttft: self.predicted_ttft,
            predicted_cached: self.predicted_cached,
            reported_cached: self.reported_cached,
            outcome: text(self.outcome),
        }
    }

    pub(super) fn size(&self) -> usize {
        let chain = |chain: &Chain| size_of::<u32>() + chain.len() * 2 * size_of::<u64>();
        let text = |text: &str| size_of::<u32>() + text.len();
        let [class, model, worker, outcome] = self.texts();
        NUMBERS * size_of::<u64>()
            + size_of::<u8>()
            + text(class)
            + text(model)
            + text(worker)
            + text(outcome)
            + chain(&self.prompt)
            + self.reply.as_ref().map_or(0, |reply| chain(reply))
    }

    fn texts(&self) -> [&str; 4] {
        let model = if self.model.len() > MODEL_BYTES {
            OTHER_MODEL
        } else {
            &self.model
        };
        [&self.class, model, &self.worker, &self.outcome]
    }

    /// Appends the encoded record: little-endian numbers; text and keys with a length prefix.
    pub(super) fn write(&self, arrival: ArrivalOrder, to: &mut Vec<u8>) {
        let numbers: [u64; NUMBERS] = [
            arrival.at_us,
            arrival.sequence,
            self.conversation.unwrap_or_default(),
            self.objective.0.to_bits(),
            self.units,
            self.tokens[0],
            self.tokens[1],
            self.ttft.0.to_bits(),
            self.took.0.to_bits(),
            self.predicted_ttft.0.to_bits(),
            self.predicted_cached.0,
            self.reported_cached.unwrap_or_default(),
        ];
        let flags = [
            self.conversation.is_some(),
            self.reply.is_some(),
            self.counted,
            self.reported_cached.is_some(),
            self.whole,
        ];
        for number in numbers {
            to.put_u64_le(number);
        }
        to.put_u8((0..).zip(flags).map(|(at, flag)| u8::from(flag) << at).sum());
        for text in self.texts() {
            to.put_u32_le(text.len() as u32);
            to.put_slice(text.as_bytes());
        }
        write_chain(&self.prompt, to);
        if let Some(reply) = &self.reply {
            write_chain(reply, to);
        }
    }

    pub(super) fn read(from: &mut &[u8]) -> Option<(ArrivalOrder, Record<'static>)> {
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = from.try_get_u64_le().ok()?;
        }
        let flags = from.try_get_u8().ok()?;
        let [conversation, reply, counted, reported, whole] = [0, 1, 2, 3, 4].map(|at| flags & 1 << at != 0);
        let mut text = || read_text(from);
        let (class, model, worker, outcome) = (text()?, text()?, text()?, text()?);
        let record = Record {
            conversation: conversation.then_some(numbers[2]),
            class,
            model,
            objective: Millis(f64::from_bits(numbers[3])),
            prompt: Cow::Owned(read_chain(from)?),
            units: numbers[4],
            reply: if reply {
                Some(Cow::Owned(read_chain(from)?))
            } else {
                None
            },
            tokens: [numbers[5], numbers[6]],
            counted,
            worker,
            ttft: Millis(f64::from_bits(numbers[7])),
            whole,
            took: Millis(f64::from_bits(numbers[8])),
            predicted_ttft: Millis(f64::from_bits(numbers[9])),
            predicted_cached: Tokens(numbers[10]),
            reported_cached: reported.then_some(numbers[11]),
            outcome,
        };
        let arrival = ArrivalOrder {
            at_us: numbers[0],
            sequence: numbers[1],
        };
        Some((arrival, record))
    }
}

fn write_chain(chain: &Chain, to: &mut Vec<u8>) {
    to.put_u32_le(chain.len() as u32);
    for (key, end) in chain.hashes().iter().zip(chain.ends()) {
        to.put_u64_le(key.0);
        to.put_u64_le(*end);
    }
}

fn read_chain(from: &mut &[u8]) -> Option<Chain> {
    let keys = from.try_get_u32_le().ok()?;
    let key = |_| {
        let key = from.try_get_u64_le().ok()?;
        Some((PrefixHash(key), from.try_get_u64_le().ok()?))
    };
    (0..keys).map(key).collect::<Option<_>>().map(Chain::of_ends)
}

fn read_text(from: &mut &[u8]) -> Option<Cow<'static, str>> {
    let length = from.try_get_u32_le().ok()? as usize;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(String::from_utf8_lossy(text).into_owned().into())
}
