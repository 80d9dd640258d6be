//! The binary format of bus messages.
//!
//! ```text
//! version u8 · kind u8 · sender u64 · number varint · workers: count varint, each u64 · fields of the kind
//! ```
//!
//! Integers are little-endian or LEB128 varints. A worker is an index into the message's list, which contains hashes of
//! names. The only text is the replica's own name. Received bytes are read within bounds, or rejected.

mod read;

use std::collections::HashMap;

use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::Millis;

pub(super) use self::read::read;

/// First byte of a message. Messages of other versions are ignored and counted.
const VERSION: u8 = 2;
/// Largest number of keys of one prompt or reply: a megabyte of a plain prompt, or many of a chat. Further keys are
/// left out.
pub(super) const MOST_KEYS: usize = 4_096;
const MOST_TIPS: usize = 16;
const MOST_WORKERS: usize = 10_000;
const LONGEST_NAME: usize = 64;
/// Length from which on a message is sent, in bytes.
pub(super) const FULL_BYTES: usize = 64 * 1024;
/// Longest message that is read, in bytes: a full one, and the longest prompt with its reply.
pub(super) const LONGEST_BYTES: usize = FULL_BYTES + 2 * MOST_KEYS * 13 + 1024;

/// The reason why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message has another version.
    #[error("the message has version {0}; this router supports {VERSION}")]
    Version(u8),
    /// The message is truncated.
    #[error("the message is truncated")]
    Short,
    /// A value is out of range or inconsistent.
    #[error("the message is malformed")]
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// Turns sent, begun and ended.
    Turns = 0,
    /// A roll call, which also shows that the replica is alive.
    Roll = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHead {
    pub(super) kind: MessageKind,
    /// Random id of the sending process.
    pub(super) sender: u64,
    /// Number of the message, one more than that of the sender's previous one.
    pub(super) number: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sent {
    pub(super) turn: u64,
    pub(super) worker: u64,
    /// Age of the turn when the message was sent.
    pub(super) age: Millis,
    pub(super) prefill: Millis,
    pub(super) session: Option<u64>,
    /// Keys of the turn's prompt, with their ends in tokens.
    pub(super) keys: Chain,
}

/// The cached blocks that an answered turn leaves on its worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CachedTurn {
    /// Tokens of prompt and reply.
    pub(super) total: u64,
    /// Tokens at the end that the worker may evict first.
    pub(super) evict_first: u64,
    /// Key of the prompt that the reply continues.
    pub(super) parent: Option<PrefixHash>,
    /// Whether the reply ends within a chunk.
    pub(super) open: bool,
    /// Tokens before the reply.
    pub(super) before: u64,
    pub(super) reply: Chain,
}

/// A hint to a worker to evict a conversation's end first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrimNotice {
    pub(super) worker: u64,
    /// Tokens of the conversation to keep.
    pub(super) keep: u64,
    /// Some of the conversation's keys, the last one first.
    pub(super) keys: Vec<PrefixHash>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum News {
    Sent(Sent),
    Begun {
        turn: u64,
        age: Millis,
    },
    Answered {
        turn: u64,
        age: Millis,
        left: CachedTurn,
    },
    Gone {
        turn: u64,
        age: Millis,
    },
    /// A hint with this epoch was sent to a worker. Hints of other replicas need a later one.
    Hinted {
        worker: u64,
        epoch: u64,
    },
    Trimmed(TrimNotice),
}

/// A turn in progress, in a roll call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UnderWay {
    pub(super) turn: u64,
    pub(super) worker: u64,
    pub(super) begun: bool,
    pub(super) age: Millis,
    pub(super) prefill: Millis,
}

/// A replica's turns in progress, within a range of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Roll {
    pub(super) name: String,
    pub(super) draining: bool,
    pub(super) from: u64,
    /// End of the range, exclusive.
    pub(super) to: u64,
    pub(super) turns: Vec<UnderWay>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum MessageBody {
    Turns(Vec<News>),
    Roll(Roll),
}

const SENT: u8 = 0;
const BEGUN: u8 = 1;
const ANSWERED: u8 = 2;
const GONE: u8 = 3;
const HINTED: u8 = 4;
const TRIMMED: u8 = 5;
/// Flag of `SENT`, after which a session follows.
const NAMED: u8 = 0x80;

#[derive(Debug, Default)]
pub(super) struct MessageWriter {
    bytes: Vec<u8>,
    workers: Vec<u64>,
    places: HashMap<u64, u64>,
}

/// A turn's encoded keys with their ends in tokens. Encoded on the turn's own thread.
#[derive(Clone, Debug, Default)]
pub(super) struct EncodedKeys(Vec<u8>);

impl EncodedKeys {
    pub(super) fn none() -> Self {
        Self(vec![0])
    }

    /// Encodes the first keys of a chain. `tokens` converts ends into tokens and is called in rising order.
    pub(super) fn of(chain: &Chain, before: u64, tokens: impl Fn(u64) -> u64) -> Self {
        let count = chain.len().min(MOST_KEYS);
        let mut bytes = Vec::with_capacity(count * 10 + 4);
        varint(&mut bytes, count as u64);
        let mut end = before;
        for (hash, &at) in chain.hashes().iter().zip(chain.ends()).take(count) {
            bytes.extend_from_slice(&hash.0.to_le_bytes());
            let next = tokens(at).max(end);
            varint(&mut bytes, next - end);
            end = next;
        }
        Self(bytes)
    }
}

/// The encoded [`CachedTurn`] of an answered turn.
#[derive(Clone, Debug)]
pub(super) struct CachedTurnBytes(Vec<u8>);

impl CachedTurnBytes {
    pub(super) fn of(left: &CachedTurn, reply: &EncodedKeys) -> Self {
        let mut bytes = Vec::with_capacity(reply.0.len() + 24);
        varint(&mut bytes, left.total);
        varint(&mut bytes, left.evict_first);
        bytes.push(u8::from(left.parent.is_some()) | u8::from(left.open) << 1);
        if let Some(parent) = left.parent {
            bytes.extend_from_slice(&parent.0.to_le_bytes());
        }
        varint(&mut bytes, left.before);
        bytes.extend_from_slice(&reply.0);
        Self(bytes)
    }
}

impl MessageWriter {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL_BYTES || self.workers.len() == MOST_WORKERS
    }

    fn worker(&mut self, worker: u64) -> u64 {
        let workers = &mut self.workers;
        *self.places.entry(worker).or_insert_with(|| {
            workers.push(worker);
            workers.len() as u64 - 1
        })
    }

    pub(super) fn sent(&mut self, sent: &Sent, keys: &EncodedKeys) {
        let worker = self.worker(sent.worker);
        let named = if sent.session.is_some() { NAMED } else { 0 };
        self.bytes.push(SENT | named);
        varint(&mut self.bytes, sent.turn);
        varint(&mut self.bytes, worker);
        time(&mut self.bytes, sent.age);
        time(&mut self.bytes, sent.prefill);
        if let Some(session) = sent.session {
            self.bytes.extend_from_slice(&session.to_le_bytes());
        }
        self.bytes.extend_from_slice(&keys.0);
    }

    pub(super) fn begun(&mut self, turn: u64, age: Millis) {
        self.plain(BEGUN, turn, age);
    }

    pub(super) fn answered(&mut self, turn: u64, age: Millis, left: &CachedTurnBytes) {
        self.plain(ANSWERED, turn, age);
        self.bytes.extend_from_slice(&left.0);
    }

    pub(super) fn gone(&mut self, turn: u64, age: Millis) {
        self.plain(GONE, turn, age);
    }

    fn plain(&mut self, what: u8, turn: u64, age: Millis) {
        self.bytes.push(what);
        varint(&mut self.bytes, turn);
        time(&mut self.bytes, age);
    }

    pub(super) fn hinted(&mut self, worker: u64, epoch: u64) {
        let worker = self.worker(worker);
        self.bytes.push(HINTED);
        varint(&mut self.bytes, worker);
        varint(&mut self.bytes, epoch);
    }

    pub(super) fn trimmed(&mut self, trimmed: &TrimNotice) {
        let worker = self.worker(trimmed.worker);
        self.bytes.push(TRIMMED);
        varint(&mut self.bytes, worker);
        varint(&mut self.bytes, trimmed.keep);
        let keys = &trimmed.keys[..trimmed.keys.len().min(MOST_TIPS)];
        varint(&mut self.bytes, keys.len() as u64);
        for key in keys {
            self.bytes.extend_from_slice(&key.0.to_le_bytes());
        }
    }

    pub(super) fn roll(&mut self, roll: &Roll) {
        let mut turns = Vec::with_capacity(roll.turns.len() * 6);
        let mut last = roll.from;
        for under_way in &roll.turns {
            varint(&mut turns, under_way.turn.saturating_sub(last));
            last = under_way.turn;
            varint(
                &mut turns,
                self.worker(under_way.worker) << 1 | u64::from(under_way.begun),
            );
            time(&mut turns, under_way.age);
            time(&mut turns, under_way.prefill);
        }
        let name = &roll.name.as_bytes()[..roll.name.len().min(LONGEST_NAME)];
        self.bytes.push(name.len() as u8);
        self.bytes.extend_from_slice(name);
        self.bytes.push(u8::from(roll.draining));
        varint(&mut self.bytes, roll.from);
        varint(&mut self.bytes, roll.to);
        varint(&mut self.bytes, roll.turns.len() as u64);
        self.bytes.append(&mut turns);
    }

    pub(super) fn take(&mut self, head: MessageHead) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes.len() + 8 * self.workers.len() + 24);
        bytes.extend_from_slice(&[VERSION, head.kind as u8]);
        bytes.extend_from_slice(&head.sender.to_le_bytes());
        varint(&mut bytes, head.number);
        varint(&mut bytes, self.workers.len() as u64);
        for worker in self.workers.drain(..) {
            bytes.extend_from_slice(&worker.to_le_bytes());
        }
        self.places.clear();
        bytes.append(&mut self.bytes);
        bytes
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Writes a time in units of a tenth of a millisecond.
fn time(bytes: &mut Vec<u8>, time: Millis) {
    varint(bytes, (time.0 * 10.0).clamp(0.0, 1e12) as u64);
}

#[cfg(test)]
mod tests;
