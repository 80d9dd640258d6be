//! The writer's allocator over the shared chunks.
//!
//! A chunk holds either run records or a log of blocks (keys and overflows). Blocks are appended to the current log
//! chunk; a freed one is only counted. When chunks are needed and the dead words exceed a thirty-second of the live
//! ones by a chunk, the live blocks of the emptiest chunk move to the log's end: the log-structured memory of Rumble,
//! Kejriwal, Ousterhout (FAST '14). Blocks move only in [`Pool::make_room`], between the steps of operations. Within a
//! step, addresses are stable.

use std::sync::Arc;

use super::heads::Heads;
use super::run;
use super::words::{LINE_WORDS, Line, Words};
use crate::sync::AtomicU32;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) words: Words,
    /// Runs that start a prompt. Kept apart because they are few and decide whether a prompt is known at all.
    pub(super) roots: Heads,
    pub(super) branches: Heads,
    /// Groups of 64 worker slots in use.
    pub(super) groups: AtomicU32,
}

impl Shared {
    #[inline]
    pub(super) fn heads(&self, start: u32) -> &Heads {
        if start == 0 { &self.roots } else { &self.branches }
    }
}

/// Free chunks needed at the start of an operation: one for its blocks, one for run records, one to clean into.
pub(super) const RESERVE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Free,
    Runs,
    Log { live: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Keys = 0,
    Overflow = 1,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    free_runs: Vec<u32>,
    current: Option<u32>,
    fill: u32,
    live: u64,
    logs: u64,
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (chunks, free, free_runs) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            shared,
            chunks,
            free,
            free_runs,
            current: None,
            fill: 0,
            live: 0,
            logs: 0,
        }
    }

    pub(super) fn line(&self, run: u32) -> &Line {
        self.shared.words.line(run)
    }

    pub(super) fn bytes(&self) -> u64 {
        let lists = self.chunks.capacity() * size_of::<Chunk>()
            + (self.free.capacity() + self.free_runs.capacity()) * size_of::<u32>();
        self.chunks.len() as u64 * self.chunk_bytes() + lists as u64
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        u64::from(self.shared.words.chunk_words()) * 8
    }

    pub(super) fn ready(&self) -> bool {
        self.free.len() >= RESERVE
    }

    /// Frees a chunk by cleaning or, if `may_grow`, by allocating one. Returns `false` if neither is possible.
    pub(super) fn make_room(&mut self, may_grow: bool) -> bool {
        let dead = self.logs * u64::from(self.shared.words.chunk_words()) - self.live;
        let worthwhile = dead > self.live / 32 + u64::from(self.shared.words.chunk_words());
        if worthwhile && self.clean() {
            return true;
        }
        if may_grow && self.grow() {
            return true;
        }
        dead > 2 * u64::from(self.shared.words.chunk_words()) && self.clean()
    }

    fn grow(&mut self) -> bool {
        let chunk = self.chunks.len() as u32;
        if chunk >= self.shared.words.capacity() {
            return false;
        }
        self.shared.words.allocate(chunk);
        self.chunks.push(Chunk::Free);
        self.free.push(chunk);
        true
    }

    fn take_chunk(&mut self, becomes: Chunk) -> Option<u32> {
        if self.free.is_empty() {
            self.grow();
        }
        let chunk = self.free.pop()?;
        self.chunks[chunk as usize] = becomes;
        Some(chunk)
    }

    pub(super) fn alloc_run(&mut self) -> Option<u32> {
        if self.free_runs.is_empty() {
            let lines = self.shared.words.chunk_lines();
            let first = self.take_chunk(Chunk::Runs)? * lines;
            for run in (first.max(1)..first + lines).rev() {
                // The chunk may have been a log: clear its words so that they are no record and no version is odd.
                let line = self.line(run);
                (1..LINE_WORDS as usize).for_each(|word| line.set(word, 0));
                line.set(0, (line.get(0) | 1).wrapping_add(1));
                self.free_runs.push(run);
            }
        }
        self.free_runs.pop()
    }

    pub(super) fn free_run(&mut self, run: u32) {
        self.free_runs.push(run);
    }

    /// Allocates a block of `words` for a run and returns its first address. `None` when the address space is used up.
    pub(super) fn alloc(&mut self, owner: u32, kind: Kind, words: u32) -> Option<u32> {
        let (size, chunk_words) = (words + 1, self.shared.words.chunk_words());
        if self.current.is_none() || self.fill + size > chunk_words {
            self.seal();
            self.current = Some(self.take_chunk(Chunk::Log { live: 0 })?);
            self.fill = 0;
            self.logs += 1;
        }
        let chunk = self.current?;
        let at = chunk * chunk_words + self.fill;
        self.shared.words.store(at, header(owner, kind, size));
        self.fill += size;
        self.count(chunk, i64::from(size));
        Some(at + 1)
    }

    fn seal(&mut self) {
        if let Some(chunk) = self.current.take() {
            let chunk_words = self.shared.words.chunk_words();
            if self.fill < chunk_words {
                self.shared.words.store(chunk * chunk_words + self.fill, 0);
            }
            self.release_if_dead(chunk);
        }
    }

    fn count(&mut self, chunk: u32, words: i64) {
        if let Chunk::Log { live } = &mut self.chunks[chunk as usize] {
            *live = live.saturating_add_signed(words as i32);
        }
        self.live = self.live.saturating_add_signed(words);
    }

    fn release_if_dead(&mut self, chunk: u32) {
        if self.chunks[chunk as usize] == (Chunk::Log { live: 0 }) && self.current != Some(chunk) {
            self.chunks[chunk as usize] = Chunk::Free;
            self.free.push(chunk);
            self.logs -= 1;
        }
    }

    pub(super) fn capacity(&self, block: u32) -> u32 {
        size_of_block(self.shared.words.load(block - 1)) - 1
    }

    /// Frees a block. Address 0 is no block.
    pub(super) fn free(&mut self, block: u32) {
        if block != 0 {
            let size = size_of_block(self.shared.words.load(block - 1));
            let chunk = self.shared.words.chunk_of(block - 1);
            self.count(chunk, -i64::from(size));
            self.release_if_dead(chunk);
        }
    }

    /// Shrinks a block in place. The rest becomes a dead block without an owner.
    pub(super) fn shrink(&mut self, block: u32, words: u32) {
        let old = self.shared.words.load(block - 1);
        let (size, new) = (size_of_block(old), words + 1);
        if new >= size {
            return;
        }
        let kept = old & !(u64::from(u32::MAX >> 1) << 1) | u64::from(new) << 1;
        self.shared.words.store(block - 1, kept);
        self.shared
            .words
            .store(block - 1 + new, header(0, Kind::Keys, size - new));
        self.count(
            self.shared.words.chunk_of(block - 1),
            i64::from(new) - i64::from(size),
        );
    }

    /// Empties the log chunk with the fewest live words.
    fn clean(&mut self) -> bool {
        let chunks = self
            .chunks
            .iter()
            .enumerate()
            .filter_map(|(index, chunk)| match chunk {
                Chunk::Log { live } if self.current != Some(index as u32) => Some((*live, index as u32)),
                _ => None,
            });
        let Some((live, victim)) = chunks.min() else {
            return false;
        };
        let chunk_words = self.shared.words.chunk_words();
        if live > chunk_words - chunk_words / 8 {
            return false;
        }
        let (mut at, end) = (victim * chunk_words, (victim + 1) * chunk_words);
        while at < end {
            let head = self.shared.words.load(at);
            if head == 0 {
                break;
            }
            self.relocate(at + 1, head);
            at += size_of_block(head);
        }
        // Moving the last live block has freed the chunk; one without live blocks is freed here.
        self.release_if_dead(victim);
        true
    }

    fn relocate(&mut self, block: u32, head: u64) {
        let (owner, words) = ((head >> 32) as u32, size_of_block(head) - 1);
        let kind = if head & 1 == 0 { Kind::Keys } else { Kind::Overflow };
        let blocks = self.line(owner).get(run::BLOCKS);
        let (keys, overflow) = (blocks as u32, (blocks >> 32) as u32);
        let live = owner != 0
            && if kind == Kind::Keys {
                keys == block
            } else {
                overflow == block
            };
        if !live {
            return;
        }
        let Some(new) = self.alloc(owner, kind, words) else {
            return;
        };
        self.shared.words.copy(block, new, words);
        let line = self.shared.words.line(owner);
        line.open();
        match kind {
            Kind::Keys => line.set_low(run::BLOCKS, new),
            Kind::Overflow => line.set_high(run::BLOCKS, new),
        }
        line.close();
        self.free(block);
    }

    pub(super) fn check(&self) -> bool {
        let logs = self.chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Log { live } => Some(u64::from(*live)),
            _ => None,
        });
        let (count, live) = logs.fold((0, 0), |(count, sum), live| (count + 1, sum + live));
        let free = self.chunks.iter().filter(|chunk| **chunk == Chunk::Free).count();
        count == self.logs && live == self.live && free == self.free.len()
    }
}

fn header(owner: u32, kind: Kind, size: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(size) << 1 | kind as u64
}

fn size_of_block(header: u64) -> u32 {
    header as u32 >> 1
}
