//! A capture in memory: the newest turns, within a number of bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::first_line;

/// The newest lines. Shared by who writes and who reads.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    max_bytes: usize,
}

impl Memory {
    /// Nothing yet, of at most so many bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Lines {
            lines: VecDeque::new(),
            bytes: 0,
            max_bytes,
        })))
    }

    /// Adds whole lines; the oldest go.
    pub(super) fn write(&self, lines: &[u8]) {
        let mut held = self.0.lock();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            held.bytes += line.len();
            held.lines.push_back(line.to_vec());
        }
        while held.bytes > held.max_bytes {
            let Some(oldest) = held.lines.pop_front() else {
                return;
            };
            held.bytes -= oldest.len();
        }
    }

    /// Turns and bytes that it holds.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let held = self.0.lock();
        (held.lines.len(), held.bytes)
    }

    /// The newest turns, as a trace.
    #[must_use]
    pub fn newest(&self, turns: usize) -> Vec<u8> {
        let mut trace = first_line();
        let held = self.0.lock();
        let skip = held.lines.len().saturating_sub(turns);
        for line in held.lines.iter().skip(skip) {
            trace.extend_from_slice(line);
        }
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_stay_within_the_bound() {
        let memory = Memory::new(8);
        memory.write(b"aa\nbb\n");
        memory.write(b"cc\n");
        assert_eq!(memory.size(), (2, 6));
        let text = String::from_utf8(memory.newest(9)).unwrap();
        assert!(
            text.starts_with("{\"meta\"") && text.ends_with("}\nbb\ncc\n"),
            "{text}"
        );
        assert!(memory.newest(1).ends_with(b"}\ncc\n"));
        memory.write(b"too long to be kept\n");
        assert_eq!(memory.size(), (0, 0));
    }
}
