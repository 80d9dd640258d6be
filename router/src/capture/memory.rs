//! A capture in memory: the newest turns, within a number of bytes.
//!
//! A turn is written down as it is, one after the other, in chunks of which the oldest goes as a whole; in order, numbered and
//! as text it is when somebody reads it. To number a turn takes several times as long as to write it down, needs tables that
//! push everything else out of the processor's caches, and most turns make room for others unread.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::units::Millis;

use super::file::first_line;
use super::numbers::{BLOCK_TOKENS, Numbers};
use super::record::{Place, Record, micros};

/// Chunks of a memory that is full.
const CHUNKS: usize = 64;
/// Least and most bytes of a chunk.
const CHUNK_BYTES: [usize; 2] = [4 << 10, 256 << 10];

/// The newest turns. Shared by who writes and who reads.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    /// Full ones, oldest first.
    full: VecDeque<Arc<Chunk>>,
    /// The one that is written.
    open: Chunk,
    /// Turns that had no room.
    left_out: u64,
    /// Turns ever written, which tells those of one microsecond apart.
    sequence: u64,
    /// Of the full ones.
    turns: usize,
    bytes: usize,
    max_bytes: usize,
    chunk_bytes: usize,
}

/// Turns, one after the other.
#[derive(Clone, Debug, Default)]
struct Chunk {
    turns: usize,
    bytes: Vec<u8>,
}

impl Memory {
    /// Nothing yet, of at most so many bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        let [least, most] = CHUNK_BYTES;
        Self(Arc::new(Mutex::new(Held {
            full: VecDeque::new(),
            open: Chunk::default(),
            left_out: 0,
            sequence: 0,
            turns: 0,
            bytes: 0,
            max_bytes,
            chunk_bytes: (max_bytes / CHUNKS).clamp(least, most),
        })))
    }

    /// Adds a turn that arrived then; the oldest go. Returns whether it has room.
    #[must_use]
    pub fn write(&self, arrived: Millis, record: &Record<'_>) -> bool {
        let held = &mut *self.0.lock();
        held.sequence += 1;
        let place = (micros(arrived), held.sequence);
        if held.open.bytes.len() >= held.chunk_bytes {
            held.close();
        }
        let before = held.open.bytes.len();
        if before == 0 {
            held.open.bytes.reserve(held.chunk_bytes);
        }
        record.write(place, &mut held.open.bytes);
        if held.open.bytes.len() - before > held.max_bytes / 2 {
            // It would leave no room for any other.
            held.open.bytes.truncate(before);
            held.open.bytes.shrink_to(held.chunk_bytes);
            held.left_out += 1;
            return false;
        }
        held.open.turns += 1;
        held.make_room();
        true
    }

    /// Turns and bytes that it holds.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let held = self.0.lock();
        (held.turns + held.open.turns, held.size())
    }

    /// Turns that were left out, as each would have taken half of it.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.0.lock().left_out
    }

    /// The newest turns, as a trace. Takes a moment: not for a thread that serves requests.
    #[must_use]
    pub fn newest(&self, turns: usize) -> Vec<u8> {
        let (full, open) = {
            let held = self.0.lock();
            (held.full.clone(), held.open.clone())
        };
        let mut all: Vec<(Place, Record<'static>)> = Vec::new();
        for chunk in full.iter().map(|chunk| &**chunk).chain([&open]) {
            let mut bytes = &chunk.bytes[..];
            all.extend(std::iter::from_fn(|| Record::read(&mut bytes)));
        }
        // They were written when they ended.
        all.sort_by_key(|(place, _)| *place);
        let skip = all.len().saturating_sub(turns);
        let mut numbers = numbers_for(&all);
        let mut trace = first_line();
        for (at, ((arrived_us, _), record)) in all.iter().enumerate() {
            // Numbered in any case: what came before says what is history of these.
            let line = numbers.line(*arrived_us as f64 / 1e6, record);
            if at >= skip {
                line.write(&mut trace);
            }
        }
        trace
    }
}

/// Numbers that forget nothing of these.
fn numbers_for(turns: &[(Place, Record<'_>)]) -> Numbers {
    let keys_of = |(_, record): &(Place, Record<'_>)| {
        let reply = record.reply.as_ref().map_or(0, |reply| reply.len());
        record.prompt.len() + reply + (record.tokens[0] / u64::from(BLOCK_TOKENS)) as usize
    };
    let some = |count: usize| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    Numbers::remembering(
        some(turns.len()),
        some(2 * turns.iter().map(keys_of).sum::<usize>()),
    )
}

impl Held {
    fn size(&self) -> usize {
        self.bytes + self.open.bytes.len()
    }

    /// The open chunk is full.
    fn close(&mut self) {
        let full = std::mem::take(&mut self.open);
        self.turns += full.turns;
        self.bytes += full.bytes.len();
        self.full.push_back(Arc::new(full));
    }

    /// The oldest chunks go until what is held is within its bound.
    fn make_room(&mut self) {
        while self.size() > self.max_bytes {
            let Some(oldest) = self.full.pop_front() else {
                // Less than a chunk, and too much: what is open goes with the next turn.
                self.close();
                continue;
            };
            self.turns -= oldest.turns;
            self.bytes -= oldest.bytes.len();
        }
    }
}
