//! A capture in memory: the newest turns, within a number of bytes.
//!
//! They are held as they are, and become text when somebody reads them: to write a short turn down as JSON takes several times
//! as long as to number it, and most turns make room for others unread.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::first_line;
use super::numbers::Line;

/// The newest turns. Shared by who writes and who reads.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Turns>>);

#[derive(Debug)]
struct Turns {
    turns: VecDeque<Arc<Line>>,
    bytes: usize,
    max_bytes: usize,
}

/// Bytes that a turn takes here.
fn weight(turn: &Line) -> usize {
    // Those of the two counts before it, and of whose it is.
    let counts = 2 * size_of::<usize>();
    let own = size_of::<Line>() + turn.block_runs.capacity() * size_of::<u64>() + turn.class.capacity();
    size_of::<Arc<Line>>() + counts + own + counts + turn.worker.len()
}

impl Memory {
    /// Nothing yet, of at most so many bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Turns {
            turns: VecDeque::new(),
            bytes: 0,
            max_bytes,
        })))
    }

    /// Adds turns; the oldest go.
    pub(super) fn write(&self, turns: impl Iterator<Item = Line>) {
        let mut held = self.0.lock();
        for turn in turns {
            held.bytes += weight(&turn);
            held.turns.push_back(Arc::new(turn));
        }
        while held.bytes > held.max_bytes {
            let Some(oldest) = held.turns.pop_front() else {
                return;
            };
            held.bytes -= weight(&oldest);
        }
    }

    /// Turns and bytes that it holds.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let held = self.0.lock();
        (held.turns.len(), held.bytes)
    }

    /// The newest turns, as a trace. Takes a moment: not for a thread that serves requests.
    #[must_use]
    pub fn newest(&self, turns: usize) -> Vec<u8> {
        let newest: Vec<Arc<Line>> = {
            let held = self.0.lock();
            let skip = held.turns.len().saturating_sub(turns);
            held.turns.iter().skip(skip).cloned().collect()
        };
        let mut trace = first_line();
        for turn in newest {
            turn.write(&mut trace);
        }
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(conv: u64, runs: usize) -> Line {
        Line {
            ts: 1.0,
            conv,
            turn: 0,
            prompt_tokens: 1,
            history_tokens: 0,
            response_tokens: 1,
            block_runs: vec![0; runs],
            class: String::new(),
            objective_ms: 500.0,
            model: "m".into(),
            worker: "w".into(),
            ttft_ms: 1.0,
            took_ms: 1.0,
            predicted_ttft_ms: 1.0,
            cached_tokens: None,
            predicted_cached_tokens: 0,
            estimated: false,
            outcome: "ok",
        }
    }

    fn conversations(trace: &[u8]) -> Vec<u64> {
        let text = String::from_utf8(trace.to_vec()).unwrap();
        assert!(text.starts_with("{\"meta\"") && text.ends_with("}\n"), "{text}");
        let conversation = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["conv"].as_u64().unwrap()
        };
        text.lines().skip(1).map(conversation).collect()
    }

    #[test]
    fn the_newest_turns_stay_within_the_bound() {
        let each = weight(&turn(1, 2));
        let memory = Memory::new(2 * each);
        memory.write([turn(1, 2), turn(2, 2)].into_iter());
        memory.write([turn(3, 2)].into_iter());
        assert_eq!(memory.size(), (2, 2 * each));
        assert_eq!(conversations(&memory.newest(9)), [2, 3]);
        assert_eq!(conversations(&memory.newest(1)), [3]);
        memory.write([turn(4, each)].into_iter());
        assert_eq!(memory.size(), (0, 0), "too long to be kept");
    }
}
