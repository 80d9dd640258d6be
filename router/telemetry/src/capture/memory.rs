//! A capture in memory: the newest turns, up to a number of bytes.
//!
//! Turns are appended to chunks, and the oldest chunk is dropped as a whole. Sorting, numbering and formatting happen
//! on reading: numbering a turn takes several times as long as appending it, and most turns are dropped unread.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::fleet_record::FleetRecord;
use policy::units::Millis;

use super::file::first_line;
use super::fleet;
use super::numbers::{BLOCK_TOKENS, Numbers, prompt_tokens};
use super::record::{ArrivalOrder, Record, micros};

const CHUNKS: usize = 64;
/// Minimum and maximum bytes of a chunk; a larger turn has its own chunk.
const CHUNK_BYTES: [usize; 2] = [4 << 10, 256 << 10];
const LEAST_BYTES: usize = 16 << 10;
/// Keys and blocks remembered while numbering: about 200 MB.
const MOST_KEYS: usize = 2 << 20;

/// The newest turns, shared between writer and readers.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<CaptureBuffer>>);

#[derive(Debug)]
struct CaptureBuffer {
    full: VecDeque<Arc<CaptureChunk>>,
    open: CaptureChunk,
    left_out: u64,
    /// Total turns written; orders turns of the same microsecond.
    sequence: u64,
    turns: usize,
    bytes: usize,
    max_bytes: usize,
    chunk_bytes: usize,
    fleet: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct CaptureChunk {
    turns: usize,
    bytes: Vec<u8>,
}

impl Memory {
    /// Creates an empty capture of at most `max_bytes`, or 16 KiB if that is more.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        let [least, most] = CHUNK_BYTES;
        let max_bytes = max_bytes.max(LEAST_BYTES);
        Self(Arc::new(Mutex::new(CaptureBuffer {
            full: VecDeque::new(),
            open: CaptureChunk::default(),
            left_out: 0,
            sequence: 0,
            turns: 0,
            bytes: 0,
            max_bytes,
            chunk_bytes: (max_bytes / CHUNKS).clamp(least, most),
            fleet: Vec::new(),
        })))
    }

    /// Adds a turn and drops the oldest to make room. Returns whether it fits.
    #[must_use]
    pub fn write(&self, arrived: Millis, record: &Record<'_>) -> bool {
        let size = record.size();
        let held = &mut *self.0.lock();
        if size > held.max_bytes / 2 {
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
        let arrival = ArrivalOrder {
            at_us: micros(arrived),
            sequence: held.sequence,
        };
        record.write(arrival, &mut held.open.bytes);
        held.open.turns += 1;
        held.make_room();
        true
    }

    /// Sets the fleet that serves the turns, in place of an earlier one.
    pub fn fleet(&self, record: &FleetRecord) {
        let line = fleet::line(record);
        self.0.lock().fleet = line;
    }

    /// Returns the number of turns held, and their size in bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let held = self.0.lock();
        (held.turns + held.open.turns, held.size())
    }

    /// Returns the number of turns left out, each larger than half of the limit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.0.lock().left_out
    }

    /// Returns the newest turns as a trace. Too slow for threads that serve requests.
    #[must_use]
    pub fn newest(&self, turns: usize) -> Vec<u8> {
        let (chunks, fleet): (Vec<Arc<CaptureChunk>>, _) = {
            let held = self.0.lock();
            let open = Arc::new(held.open.clone());
            let chunks = held.full.iter().cloned().chain([open]).collect();
            (chunks, held.fleet.clone())
        };
        let (order, mut numbers) = in_order(&chunks);
        let skip = order.len().saturating_sub(turns);
        let mut trace = [first_line(), fleet].concat();
        for (at, &(arrival, chunk, start)) in order.iter().enumerate() {
            let Some((_, record)) = Record::read(&mut &chunks[chunk].bytes[start..]) else {
                continue;
            };
            // Earlier turns are numbered too, because they determine the history.
            let line = numbers.line(arrival.at_us as f64 / 1e6, &record);
            if at >= skip {
                line.write(&mut trace);
            }
        }
        trace
    }
}

/// Returns the turns' positions by arrival, and a numbering for up to [`MOST_KEYS`] of their keys.
fn in_order(chunks: &[Arc<CaptureChunk>]) -> (Vec<(ArrivalOrder, usize, usize)>, Numbers) {
    let (mut order, mut keys) = (Vec::new(), 0);
    for (number, chunk) in chunks.iter().enumerate() {
        let mut rest = &chunk.bytes[..];
        loop {
            let start = chunk.bytes.len() - rest.len();
            let Some((arrival, record)) = Record::read(&mut rest) else {
                break;
            };
            let reply = record.reply.as_ref().map_or(0, |reply| reply.len());
            let blocks = (prompt_tokens(&record) / u64::from(BLOCK_TOKENS)) as usize;
            keys = blocks
                .saturating_add(keys)
                .saturating_add(record.prompt.len() + reply);
            order.push((arrival, number, start));
        }
    }
    order.sort_unstable();
    let some = |count: usize| NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
    let numbers = Numbers::remembering(some(order.len()), some(keys.saturating_mul(2).min(MOST_KEYS)));
    (order, numbers)
}

impl CaptureBuffer {
    fn size(&self) -> usize {
        self.bytes + self.open.bytes.len()
    }

    fn close(&mut self) {
        let full = std::mem::take(&mut self.open);
        if full.turns > 0 {
            self.turns += full.turns;
            self.bytes += full.bytes.len();
            self.full.push_back(Arc::new(full));
        }
    }

    fn make_room(&mut self) {
        while self.size() > self.max_bytes
            && let Some(oldest) = self.full.pop_front()
        {
            self.turns -= oldest.turns;
            self.bytes -= oldest.bytes.len();
        }
    }
}
