//! What goes over the bus: small binary messages.
//!
//! ```text
//! version u8 · kind u8 · sender u64 · number varint · workers: count varint, each u64 · what the kind says
//! ```
//!
//! Whole numbers are little-endian or LEB128 varints; a worker is its place in the message's list, which holds hashes of
//! names. A prompt's keys are 8 bytes each, and a byte or two for the tokens that each adds. There is no text in it but the
//! replica's own name.
//!
//! What arrives is somebody else's bytes: whatever they are, they are read within bounds, or refused.

mod read;

use std::collections::HashMap;

use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::units::Millis;

pub(super) use self::read::read;

/// What the first byte says. A replica of another version is not heard, and counted.
const VERSION: u8 = 2;
/// Most keys of one prompt or reply: many megabytes of text. What is beyond them is not told.
pub(super) const MOST_KEYS: usize = 4_096;
/// Most keys by which a conversation that was trimmed is found.
const MOST_TIPS: usize = 16;
/// Most workers that one message names.
const MOST_WORKERS: usize = 10_000;
/// Longest name of a replica.
const LONGEST_NAME: usize = 64;
/// Bytes from which on a message is full: what is in it goes out.
pub(super) const FULL_BYTES: usize = 64 * 1024;
/// Longest message that is read: a full one and the longest prompt with its reply.
pub(super) const LONGEST_BYTES: usize = FULL_BYTES + 2 * MOST_KEYS * 13 + 1024;

/// Why a message was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is of another version.
    #[error("it is of version {0}, and this router understands {VERSION}")]
    Version(u8),
    /// It ends too soon.
    #[error("it ends too soon")]
    Short,
    /// It says what cannot be.
    #[error("it says what cannot be")]
    Malformed,
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Turns, as they are sent, begun and over.
    Turns = 0,
    /// What is under way, and that the replica lives.
    Roll = 1,
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// The process that sent it: a number of its own at each start.
    pub(super) sender: u64,
    /// One more than the message before it.
    pub(super) number: u64,
}

/// A turn that goes to a worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sent {
    pub(super) turn: u64,
    pub(super) worker: u64,
    /// How long ago, when the message went out.
    pub(super) age: Millis,
    pub(super) prefill: Millis,
    /// Its conversation.
    pub(super) session: Option<u64>,
    /// Its keys, with their ends in tokens.
    pub(super) keys: Chain,
}

/// What an answered turn left on its worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Left {
    /// Tokens of prompt and reply.
    pub(super) total: u64,
    /// Of these, at the end, what the worker may drop first.
    pub(super) evict_first: u64,
    /// The prompt's key that the reply goes on from.
    pub(super) parent: Option<PrefixHash>,
    /// Whether the reply ends within a chunk.
    pub(super) open: bool,
    /// Where the reply begins, in tokens.
    pub(super) before: u64,
    /// The reply's keys, with their ends in tokens.
    pub(super) reply: Chain,
}

/// A worker was told that the end of a conversation may go first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trimmed {
    pub(super) worker: u64,
    /// Tokens of the conversation that it should keep.
    pub(super) keep: u64,
    /// Some of its keys, the last one first.
    pub(super) keys: Vec<PrefixHash>,
}

/// One turn's news.
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
        left: Left,
    },
    Gone {
        turn: u64,
        age: Millis,
    },
    /// A worker was told something under this number: what others tell it has to come after.
    Hinted {
        worker: u64,
        epoch: u64,
    },
    Trimmed(Trimmed),
}

/// A turn that is under way, as the roll call has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UnderWay {
    pub(super) turn: u64,
    pub(super) worker: u64,
    pub(super) begun: bool,
    pub(super) age: Millis,
    pub(super) prefill: Millis,
}

/// A replica says what it has under way, of the turns from one number up to another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Roll {
    pub(super) name: String,
    pub(super) draining: bool,
    pub(super) from: u64,
    /// Not included.
    pub(super) to: u64,
    pub(super) turns: Vec<UnderWay>,
}

/// What a message says after its head.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body {
    Turns(Vec<News>),
    Roll(Roll),
}

const SENT: u8 = 0;
const BEGUN: u8 = 1;
const ANSWERED: u8 = 2;
const GONE: u8 = 3;
const HINTED: u8 = 4;
const TRIMMED: u8 = 5;
/// Flag of `SENT`: a session follows.
const NAMED: u8 = 0x80;

/// Writes messages.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    workers: Vec<u64>,
    places: HashMap<u64, u64>,
}

/// A turn's keys and the tokens at their ends, as they stand in a message: made where the turn is, on its own thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Vec<u8>);

impl Keys {
    /// None.
    pub(super) fn none() -> Self {
        Self(vec![0])
    }

    /// The first keys of a chain; `tokens` tells where in tokens an end of it is, and is asked in rising order.
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

/// An answered turn's [`Left`], as it stands in a message.
#[derive(Clone, Debug)]
pub(super) struct LeftBytes(Vec<u8>);

impl LeftBytes {
    /// Everything but the keys is in `left`.
    pub(super) fn of(left: &Left, reply: &Keys) -> Self {
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

impl Writer {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether what waits should go out now.
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

    pub(super) fn sent(&mut self, sent: &Sent, keys: &Keys) {
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

    pub(super) fn answered(&mut self, turn: u64, age: Millis, left: &LeftBytes) {
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

    pub(super) fn trimmed(&mut self, trimmed: &Trimmed) {
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

    /// The message; nothing waits afterwards.
    pub(super) fn take(&mut self, head: Head) -> Vec<u8> {
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

/// In units of a tenth of a millisecond.
fn time(bytes: &mut Vec<u8>, time: Millis) {
    varint(bytes, (time.0 * 10.0).clamp(0.0, 1e12) as u64);
}

#[cfg(test)]
mod tests;
