//! A turn that was answered, as its request hands it in; and as bytes, where many are held and few are read.

use std::borrow::Cow;

use bytes::{Buf, BufMut};
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

use super::numbers::{MODEL_BYTES, OTHER_MODEL};

/// Numbers of a record.
const NUMBERS: usize = 12;

/// When a turn arrived, in microseconds of the router's clock, and a number that tells turns of one microsecond apart.
pub(super) type Place = (u64, u64);

/// Of the router's clock.
pub(super) fn micros(arrived: Millis) -> u64 {
    (arrived.0.max(0.0) * 1e3) as u64
}

/// A turn that was answered, as far as its answer came.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<'a> {
    /// The conversation's key; a turn without one is a conversation of its own.
    pub conversation: Option<u64>,
    /// The class of the objective that it was held to; empty for the configured one.
    pub class: Cow<'a, str>,
    /// The model that it asked for.
    pub model: Cow<'a, str>,
    /// Time to first token that it was to meet.
    pub objective: Millis,
    /// The prompt's keys.
    pub prompt: Cow<'a, Chain>,
    /// What the keys' ends count, all in all: bytes or tokens of the prompt.
    pub units: u64,
    /// The reply's keys, where the next turn can repeat it.
    pub reply: Option<Cow<'a, Chain>>,
    /// Tokens of the prompt and of the answer.
    pub tokens: [u64; 2],
    /// Whether the worker counted these tokens; else they are estimated.
    pub counted: bool,
    /// The worker that answered.
    pub worker: Cow<'a, str>,
    /// From the turn's last byte in to its first token out.
    pub ttft: Millis,
    /// From the same moment to the end of the answer.
    pub took: Millis,
    /// What was predicted for the time to first token.
    pub predicted_ttft: Millis,
    /// Cached tokens, as predicted.
    pub predicted_cached: Tokens,
    /// Cached tokens, as the worker reported.
    pub reported_cached: Option<u64>,
    /// How the answer ended.
    pub outcome: Cow<'a, str>,
}

impl Record<'_> {
    /// With all that it refers to.
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
            took: self.took,
            predicted_ttft: self.predicted_ttft,
            predicted_cached: self.predicted_cached,
            reported_cached: self.reported_cached,
            outcome: text(self.outcome),
        }
    }

    /// Bytes that it takes when it is held.
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

    /// A model whose name is not numbered either is held by none.
    fn texts(&self) -> [&str; 4] {
        let model = if self.model.len() > MODEL_BYTES {
            OTHER_MODEL
        } else {
            &self.model
        };
        [&self.class, model, &self.worker, &self.outcome]
    }

    /// Adds it to what is held: numbers in little endian, text and keys with their lengths before them.
    pub(super) fn write(&self, (arrived_us, sequence): Place, to: &mut Vec<u8>) {
        let numbers: [u64; NUMBERS] = [
            arrived_us,
            sequence,
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

    /// Takes the next one of what is held.
    pub(super) fn read(from: &mut &[u8]) -> Option<(Place, Record<'static>)> {
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = from.try_get_u64_le().ok()?;
        }
        let flags = from.try_get_u8().ok()?;
        let [conversation, reply, counted, reported] = [0, 1, 2, 3].map(|at| flags & 1 << at != 0);
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
            took: Millis(f64::from_bits(numbers[8])),
            predicted_ttft: Millis(f64::from_bits(numbers[9])),
            predicted_cached: Tokens(numbers[10]),
            reported_cached: reported.then_some(numbers[11]),
            outcome,
        };
        Some(((numbers[0], numbers[1]), record))
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
