//! The memory shared with readers: chunks of atomic words, addressed by number and never freed while the index exists.
//!
//! A reader may hold an address whose block was freed and overwritten a moment ago. All words are atomic and are never
//! deallocated, so the read is merely stale, and the version of its run reveals it: no reclamation scheme, no `unsafe`.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering, fence};

/// Words per line; a run's record is one line.
pub(super) const LINE_WORDS: u32 = 16;

/// Two cache lines, fetched together: the hot half that readers use, and the cold half for the writer only.
#[repr(align(128))]
pub(super) struct Line([AtomicU64; LINE_WORDS as usize]);

impl Line {
    fn blank() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    pub(super) fn get(&self, word: usize) -> u64 {
        self.0[word % LINE_WORDS as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, word: usize, value: u64) {
        self.0[word % LINE_WORDS as usize].store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn low(&self, word: usize) -> u32 {
        self.get(word) as u32
    }

    #[inline]
    pub(super) fn high(&self, word: usize) -> u32 {
        (self.get(word) >> 32) as u32
    }

    #[inline]
    pub(super) fn set_low(&self, word: usize, value: u32) {
        self.set(word, self.get(word) & !0xFFFF_FFFF | u64::from(value));
    }

    #[inline]
    pub(super) fn set_high(&self, word: usize, value: u32) {
        self.set(word, self.get(word) & 0xFFFF_FFFF | u64::from(value) << 32);
    }

    /// Returns the version that a reader must find again after its reads, or `None` while the writer changes this line.
    #[inline]
    pub(super) fn version(&self) -> Option<u64> {
        let version = self.0[0].load(Ordering::Acquire);
        (version & 1 == 0).then_some(version)
    }

    /// Returns whether everything read since [`Self::version`] belonged to that version.
    #[inline]
    pub(super) fn unchanged(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.0[0].load(Ordering::Relaxed) == version
    }

    /// Opens the line, and what its addresses lead to, for changes. Not reentrant.
    pub(super) fn open(&self) {
        let version = self.get(0);
        debug_assert!(version & 1 == 0, "opened twice");
        self.set(0, version + 1);
        fence(Ordering::Release);
    }

    pub(super) fn close(&self) {
        let version = self.get(0);
        debug_assert!(version & 1 == 1, "closed without opening");
        self.0[0].store(version + 1, Ordering::Release);
    }
}

/// All chunks. Word addresses and line numbers are global: `address = line × 16 + word`.
pub(super) struct Words {
    chunks: Box<[OnceLock<Box<[Line]>>]>,
    chunk_lines_log2: u32,
    blank: Line,
}

impl Words {
    /// Creates room for `chunks` chunks of 2^`chunk_lines_log2` lines, none of them allocated.
    pub(super) fn new(chunks: usize, chunk_lines_log2: u32) -> Self {
        let chunks = (0..chunks).map(|_| OnceLock::new()).collect();
        Self {
            chunks,
            chunk_lines_log2,
            blank: Line::blank(),
        }
    }

    pub(super) fn allocate(&self, chunk: u32) {
        if let Some(slot) = self.chunks.get(chunk as usize) {
            slot.get_or_init(|| {
                (0..1usize << self.chunk_lines_log2)
                    .map(|_| Line::blank())
                    .collect()
            });
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.chunks.len() as u32
    }

    pub(super) fn chunk_words(&self) -> u32 {
        LINE_WORDS << self.chunk_lines_log2
    }

    pub(super) fn chunk_of(&self, address: u32) -> u32 {
        address >> (self.chunk_lines_log2 + LINE_WORDS.ilog2())
    }

    pub(super) fn chunk_lines(&self) -> u32 {
        1 << self.chunk_lines_log2
    }

    /// Returns a line by its number. An unallocated one reads as zeros.
    #[inline]
    pub(super) fn line(&self, line: u32) -> &Line {
        let within = line & ((1 << self.chunk_lines_log2) - 1);
        match self
            .chunks
            .get((line >> self.chunk_lines_log2) as usize)
            .and_then(OnceLock::get)
        {
            Some(chunk) => chunk.get(within as usize).unwrap_or(&self.blank),
            None => &self.blank,
        }
    }

    #[inline]
    pub(super) fn load(&self, address: u32) -> u64 {
        self.line(address / LINE_WORDS)
            .get((address % LINE_WORDS) as usize)
    }

    #[inline]
    pub(super) fn store(&self, address: u32, value: u64) {
        self.line(address / LINE_WORDS)
            .set((address % LINE_WORDS) as usize, value);
    }

    /// Copies a block. Source and target each lie within one chunk.
    pub(super) fn copy(&self, from: u32, to: u32, words: u32) {
        let within = (1usize << (self.chunk_lines_log2 + LINE_WORDS.ilog2())) - 1;
        let chunk = |address: u32| {
            self.chunks
                .get(self.chunk_of(address) as usize)
                .and_then(OnceLock::get)
        };
        let (Some(source), Some(target)) = (chunk(from), chunk(to)) else {
            return;
        };
        let (mut from, mut to) = (from as usize & within, to as usize & within);
        let (line, mut left) = (LINE_WORDS as usize, words as usize);
        while left > 0 {
            let (Some(Line(old)), Some(Line(new))) = (source.get(from / line), target.get(to / line)) else {
                return;
            };
            // Copy up to the end of the nearer line.
            let stretch = left.min(line - from % line).min(line - to % line);
            for (old, new) in old[from % line..].iter().zip(&new[to % line..][..stretch]) {
                new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            (from, to, left) = (from + stretch, to + stretch, left - stretch);
        }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Words({} chunks of {} words)",
            self.chunks.len(),
            self.chunk_words()
        )
    }
}
