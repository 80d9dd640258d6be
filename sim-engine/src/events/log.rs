//! A bounded log of encoded batches, for the publisher and for replay. A batch is numbered, from 0, when it is created,
//! so a publisher that falls behind leaves a gap that subscribers can detect and repair, as with vLLM's bounded queue.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{KvEvent, sglang};
use crate::config::EventStyle;

#[derive(Debug)]
pub(crate) struct EventLog {
    limit: usize,
    batches: Mutex<Batches>,
    pub(crate) grown: Notify,
    style: EventStyle,
    rank: u32,
    /// Whether a fault keeps the publisher from sending.
    pub(crate) mute: AtomicBool,
    /// Whether a fault leaves replay requests unanswered.
    pub(crate) deaf: AtomicBool,
}

#[derive(Debug, Default)]
struct Batches {
    /// Number of the oldest batch kept.
    first: u64,
    kept: VecDeque<Bytes>,
    /// Number of restarts. Batch numbers begin at 0 after each.
    life: u64,
}

impl EventLog {
    pub(crate) fn new(limit: usize, style: EventStyle, rank: u32) -> Self {
        Self {
            limit: limit.max(1),
            style,
            rank,
            mute: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            batches: Mutex::default(),
            grown: Notify::new(),
        }
    }

    pub(crate) fn append(&self, timestamp_s: f64, events: &[KvEvent]) {
        if events.is_empty() {
            return;
        }
        // Encoding plain data into memory cannot fail. If it did, the missing number would show as a gap.
        let payload = match self.style {
            EventStyle::Vllm => rmp_serde::to_vec_named(&(timestamp_s, events, self.rank)),
            EventStyle::Sglang => rmp_serde::to_vec_named(&(timestamp_s, sglang::events(events), self.rank)),
        };
        let payload = payload.unwrap_or_default();
        let mut batches = self.batches.lock();
        if batches.kept.len() >= self.limit {
            batches.kept.pop_front();
            batches.first += 1;
        }
        batches.kept.push_back(Bytes::from(payload));
        drop(batches);
        self.grown.notify_one();
    }

    /// Simulates a new process: drops all batches and restarts the numbers at 0.
    pub(crate) fn restart(&self) {
        let mut batches = self.batches.lock();
        *batches = Batches {
            life: batches.life + 1,
            ..Batches::default()
        };
    }

    /// Returns the next batch at `cursor`, and the cursor after it.
    pub(crate) fn next(&self, cursor: Cursor) -> Option<(u64, Bytes, Cursor)> {
        let batches = self.batches.lock();
        let wanted = if cursor.life == batches.life {
            cursor.next
        } else {
            0
        };
        let sequence = wanted.max(batches.first);
        let payload = batches
            .kept
            .get(usize::try_from(sequence - batches.first).ok()?)?
            .clone();
        Some((
            sequence,
            payload,
            Cursor {
                life: batches.life,
                next: sequence + 1,
            },
        ))
    }

    /// Returns a cursor at number `next` of the current life.
    pub(crate) fn from(&self, next: u64) -> Cursor {
        Cursor {
            life: self.batches.lock().life,
            next,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    life: u64,
    next: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_skips_to_the_oldest_kept_batch() {
        let log = EventLog::new(2, EventStyle::Vllm, 0);
        for _ in 0..5 {
            log.append(0.0, &[KvEvent::AllBlocksCleared]);
        }
        let (sequence, _, cursor) = log.next(Cursor::default()).unwrap();
        assert_eq!(sequence, 3);
        let (sequence, _, cursor) = log.next(cursor).unwrap();
        assert_eq!(sequence, 4);
        assert!(log.next(cursor).is_none());
        log.restart();
        log.append(0.0, &[KvEvent::AllBlocksCleared]);
        assert_eq!(log.next(cursor).map(|(sequence, ..)| sequence), Some(0));
    }
}
