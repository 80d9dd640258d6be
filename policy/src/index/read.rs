//! The lookup: no lock, no allocation, no write to shared memory.
//!
//! Per run on the chain: one probe for the run that begins with the next key, one record, and one comparison at the
//! run's far end ([`View::matched`]). Each record is read under its version. At the end, all versions are confirmed
//! once more, so the whole result was true at one moment (`docs/prefix-index.md`). After [`ATTEMPTS`] walks the last
//! result is returned as it is and marked ([`Reach::is_complete`]), so a reader never waits indefinitely.

use std::sync::Arc;

use super::Reach;
use super::heads::Moving;
use super::pool::Shared;
use super::run::{self, View};
use crate::ids::PrefixHash;
use crate::sync::{ATTEMPTS, Ordering, PATIENCE, spin_loop, yield_now};

/// A larger word count is no overflow but a torn read.
const MOST_OVERFLOW: u32 = 4096;

/// A handle for lookups by other threads than the writer's. Clone it into as many threads as needed.
#[derive(Clone, Debug)]
pub struct IndexReader {
    pub(super) shared: Arc<Shared>,
}

enum Walk {
    Done,
    /// The writer interfered.
    Again,
}

impl IndexReader {
    /// Looks up a chain like [`super::Index::lookup`], concurrently with the writer.
    #[inline]
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.shared.lookup(chain, reach);
    }
}

impl Shared {
    #[inline]
    pub(super) fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        for attempt in 0..ATTEMPTS {
            reach.begin(self.groups.load(Ordering::Relaxed));
            if let Walk::Done = self.walk(chain, reach)
                && self.confirm(reach)
            {
                return;
            }
            if attempt % PATIENCE == PATIENCE - 1 {
                yield_now()
            } else {
                spin_loop()
            }
        }
        reach.cut_short();
    }

    #[inline]
    fn walk(&self, chain: &[PrefixHash], reach: &mut Reach) -> Walk {
        let mut rest = chain;
        let mut depth = 0u32;
        while let Some(next) = rest.first() {
            let id = match self.heads(depth).find(next.0) {
                Ok(Some(id)) => id,
                Ok(None) => return Walk::Done,
                Err(Moving) => return Walk::Again,
            };
            let line = self.words.line(id);
            let Some(view) = View::of(line) else {
                return Walk::Again;
            };
            if view.first != next.0 || view.start != depth || view.len == 0 {
                // Either the run was replaced since it was found, or the chain is invalid.
                let stable = view.first == next.0 && view.len > 0 && line.unchanged(view.version);
                return if stable { Walk::Done } else { Walk::Again };
            }
            let matched = view.matched(&self.words, 0, rest);
            if !self.gather_overflow(&view, reach) || !line.unchanged(view.version) {
                return Walk::Again;
            }
            reach.visited.push((id, view.version));
            apply(&view, depth, matched, reach);
            depth += matched;
            if matched < view.len {
                return Walk::Done;
            }
            rest = &rest[matched as usize..];
        }
        Walk::Done
    }

    #[inline]
    fn gather_overflow(&self, view: &View, reach: &mut Reach) -> bool {
        reach.overflow.clear();
        if view.overflow == 0 {
            return true;
        }
        let counts = self.words.load(view.overflow);
        let (groups, partials) = run::unpack(counts);
        if groups > MOST_OVERFLOW || partials > MOST_OVERFLOW {
            return false;
        }
        let words = 1 + 2 * groups + partials;
        reach
            .overflow
            .extend((0..words).map(|word| self.words.load(view.overflow.wrapping_add(word))));
        true
    }

    /// Returns whether all runs passed are unchanged, and were thus valid together.
    #[inline]
    fn confirm(&self, reach: &Reach) -> bool {
        reach
            .visited
            .iter()
            .all(|(id, version)| self.words.line(*id).unchanged(*version))
    }
}

#[inline]
fn apply(view: &View, depth: u32, matched: u32, reach: &mut Reach) {
    reach.set_deepest(depth + matched);
    if view.full != 0 {
        reach.set_group(view.group, view.full, depth + matched);
    }
    for packed in view.partials {
        if packed != 0 {
            let (worker, held) = run::unpack(packed);
            reach.set_one(worker, depth + held.min(matched));
        }
    }
    if view.overflow == 0 {
        return;
    }
    let overflow = std::mem::take(&mut reach.overflow);
    if let Some((counts, words)) = overflow.split_first() {
        let (groups, _) = run::unpack(*counts);
        let (pairs, partials) = words.split_at(words.len().min(2 * groups as usize));
        let (pairs, _) = pairs.as_chunks::<2>();
        for [group, bits] in pairs {
            reach.set_group(*group as u32, *bits, depth + matched);
        }
        for packed in partials {
            let (worker, held) = run::unpack(*packed);
            reach.set_one(worker, depth + held.min(matched));
        }
    }
    reach.overflow = overflow;
}
