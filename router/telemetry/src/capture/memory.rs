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
use super::numbers::{BLOCK_TOKENS, Numbers, prompt_tokens};
use super::record::{Place, Record, micros};

/// Chunks of a memory that is full.
const CHUNKS: usize = 64;
/// Least and most bytes of a chunk, as far as no turn is longer.
const CHUNK_BYTES: [usize; 2] = [4 << 10, 256 << 10];
/// Least bytes of a memory.
const LEAST_BYTES: usize = 16 << 10;
/// Most keys, and blocks, that are remembered while turns are numbered: some 200 MB.
const MOST_KEYS: usize = 2 << 20;

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
        let max_bytes = max_bytes.max(LEAST_BYTES);
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
        let size = record.size();
        let held = &mut *self.0.lock();
        if size > held.max_bytes / 2 {
            // It would leave no room for any other.
            held.left_out += 1;
            return false;
        }
        if held.open.bytes.len() + size > held.chunk_bytes {
            held.close();
        }
        if held.open.bytes.capacity() == 0 {
            held.open.bytes.reserve_exact(held.chunk_bytes.max(size));
        }
        held.sequence += 1;
        record.write((micros(arrived), held.sequence), &mut held.open.bytes);
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
        let chunks: Vec<Arc<Chunk>> = {
            let held = self.0.lock();
            let open = Arc::new(held.open.clone());
            held.full.iter().cloned().chain([open]).collect()
        };
        let (order, mut numbers) = in_order(&chunks);
        let skip = order.len().saturating_sub(turns);
        let mut trace = first_line();
        for (at, &((arrived_us, _), chunk, start)) in order.iter().enumerate() {
            let Some((_, record)) = Record::read(&mut &chunks[chunk].bytes[start..]) else {
                continue;
            };
            // Numbered in any case: what came before says what is history of these.
            let line = numbers.line(arrived_us as f64 / 1e6, &record);
            if at >= skip {
                line.write(&mut trace);
            }
        }
        trace
    }
}

/// Where the turns are, in the order in which they came (they were written when they ended): chunk, and byte of it. And
/// numbers that will forget nothing of them, unless they are very many.
fn in_order(chunks: &[Arc<Chunk>]) -> (Vec<(Place, usize, usize)>, Numbers) {
    let (mut order, mut keys) = (Vec::new(), 0);
    for (number, chunk) in chunks.iter().enumerate() {
        let mut rest = &chunk.bytes[..];
        loop {
            let start = chunk.bytes.len() - rest.len();
            let Some((place, record)) = Record::read(&mut rest) else {
                break;
            };
            let reply = record.reply.as_ref().map_or(0, |reply| reply.len());
            let blocks = (prompt_tokens(&record) / u64::from(BLOCK_TOKENS)) as usize;
            keys = blocks
                .saturating_add(keys)
                .saturating_add(record.prompt.len() + reply);
            order.push((place, number, start));
        }
    }
    order.sort_unstable();
    let some = |count: usize| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let numbers = Numbers::remembering(some(order.len()), some(keys.saturating_mul(2).min(MOST_KEYS)));
    (order, numbers)
}

impl Held {
    fn size(&self) -> usize {
        self.bytes + self.open.bytes.len()
    }

    /// Nothing more is written to the open chunk.
    fn close(&mut self) {
        let full = std::mem::take(&mut self.open);
        if full.turns > 0 {
            self.turns += full.turns;
            self.bytes += full.bytes.len();
            self.full.push_back(Arc::new(full));
        }
    }

    /// The oldest chunks go until what is held is within its bound; the open one is less than half of that.
    fn make_room(&mut self) {
        while self.size() > self.max_bytes
            && let Some(oldest) = self.full.pop_front()
        {
            self.turns -= oldest.turns;
            self.bytes -= oldest.bytes.len();
        }
    }
}
