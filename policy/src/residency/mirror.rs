//! The model of one worker's cache, and its correction by the worker's reports.
//!
//! A prefix wrongly believed resident attracts the conversation's next turn. But an LRU cache that lacks a piece lacks
//! everything used before it: where a report shows a missing piece, *everything last released before it is dropped as
//! well* (`docs/evidence.md`). Under another [`Order`] a report affects its own prompt alone. Marked pieces are evicted
//! first, so the rule applies among them separately ([`PrefixCache::drop_older`]).
//!
//! A plain prompt is one text whose chunks never restart, so a turn ends with an *open* piece: the tokens past the last
//! full chunk. In the next turn these tokens are part of a fuller chunk, which has another key. The open piece is then
//! removed, or its tokens would count twice. If a client repeats a prompt, its chain ends with the key of the prompt's
//! last, short chunk. The response's first piece begins with the tokens of that chunk, so the index answers for the key
//! as long as that piece is resident.
//!
//! A response that found nothing cached is only a suspicion, since some requests bypass the cache: one of another
//! conversation confirms it, and a hit on an older piece refutes it. Cleared caches are detected by [`Resets`].

use rustc_hash::FxHashMap;

use super::capacity::LearnedCapacity;
use super::resets::{Evidence, Inference, Resets};
use super::unhinted::{Compared, UnhintedCache};
use crate::cache::{Change, Keep, Lease, Order, Piece, PrefixCache, Standing};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// A worker's report of how much of a prompt was cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report<'a> {
    /// Conversation of the prompt.
    pub conversation: u64,
    /// Leading keys of the prompt that were believed resident.
    pub believed: &'a [PrefixHash],
    /// Size of the worker's cache blocks.
    pub block: Tokens,
    /// Prompt tokens found cached.
    pub cached: Tokens,
    /// The last key of the prompt that was found in full.
    pub found: Option<PrefixHash>,
    /// The first key believed resident of which some tokens were missing.
    pub missing: Option<PrefixHash>,
}

/// The correction of a worker's mirror by a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrected {
    /// Number of keys dropped, of other prompts.
    pub dropped: usize,
    /// Whether the worker's cache was cleared without notice.
    pub is_cleared: bool,
}

#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) cache: PrefixCache,
    /// Position before which all released pieces may be gone, and the conversation whose report raised the suspicion.
    suspicion: Option<(Standing, u64)>,
    resets: Resets,
    /// The learned capacity; `None` if it is configured or reported.
    learned: Option<LearnedCapacity>,
    /// The learned capacity before the first of the losses that may show a clear.
    learned_before: Option<LearnedCapacity>,
    /// The worker's cache under LRU without hints, followed from its first hint on.
    unhinted: Option<Box<UnhintedCache>>,
    /// The newest open piece after each piece. No more entries than pieces.
    open: FxHashMap<PrefixHash, PrefixHash>,
    /// The prompt's short key that a piece begins with. No more entries than pieces.
    begun: FxHashMap<PrefixHash, PrefixHash>,
}

impl Mirror {
    pub(super) fn new(capacity: Tokens) -> Self {
        Self {
            cache: PrefixCache::new(capacity),
            suspicion: None,
            resets: Resets::default(),
            learned: None,
            learned_before: None,
            unhinted: None,
            open: FxHashMap::default(),
            begun: FxHashMap::default(),
        }
    }

    pub(super) fn succeeded(&self, capacity: Tokens) -> Self {
        Self {
            cache: self.cache.succeeded(capacity),
            ..Self::new(capacity)
        }
    }

    pub(super) fn learns_capacity(&self) -> bool {
        self.learned.is_some()
    }

    pub(super) fn learn_capacity(&mut self) {
        self.learned.get_or_insert_default();
    }

    pub(super) fn set_reported_capacity(&mut self, capacity: Tokens, changes: &mut Vec<Change>) {
        self.learned = None;
        self.cache.set_capacity(capacity, changes);
    }

    /// Starts following the cache without hints, before the first hint.
    pub(super) fn follow_unhinted(&mut self) {
        if self.cache.order() == Order::Lru {
            self.unhinted
                .get_or_insert_with(|| Box::new(UnhintedCache::of(&self.cache)));
        }
    }

    /// Returns the cached tokens of a prompt with hints, given that its first `hits` pieces are cached, and under LRU.
    pub(super) fn compare(&self, pieces: &[Piece], hits: usize) -> Option<Compared> {
        Some(self.unhinted.as_ref()?.compare(pieces, hits))
    }

    pub(super) fn settle(&mut self, lease: Lease, keep: Keep, changes: &mut Vec<Change>) {
        if keep != Keep::All {
            self.follow_unhinted();
        }
        if let Some(unhinted) = &mut self.unhinted {
            unhinted.set_capacity(self.cache.capacity());
            unhinted.used(self.cache.leased(&lease).rev());
        }
        self.cache.release(lease, keep, changes);
    }

    pub(super) fn found_more(&mut self, is_full: bool) {
        self.resets.found_more();
        let capacity = self.cache.capacity();
        let learned = self.learned.as_mut().filter(|_| is_full);
        if let Some(grown) = learned.and_then(|learned| learned.found_more(capacity)) {
            self.cache.set_capacity(grown, &mut Vec::new());
        }
    }

    /// Shrinks a learned capacity: the tokens used since an unmarked missing piece fill the worker's cache.
    fn learn_from_missing(&mut self, changes: &mut Vec<Change>) {
        let (capacity, used) = (self.cache.capacity(), self.cache.used());
        let learned = self.learned.as_mut();
        if let Some(shrunk) = learned.and_then(|learned| learned.missed(capacity, used)) {
            self.cache.set_capacity(shrunk, changes);
        }
    }

    /// Records that a turn ended within a chunk, with the piece `end` after `parent`.
    pub(super) fn ends_open(&mut self, parent: PrefixHash, end: PrefixHash) {
        self.open.insert(parent, end);
    }

    /// Records that the response's piece `first` begins with the prompt's short key `short`. Returns the key that
    /// `first` answered for before, if the index must drop it.
    pub(super) fn begins(&mut self, first: PrefixHash, short: PrefixHash) -> Option<PrefixHash> {
        let before = self.begun.insert(first, short)?;
        Some(before).filter(|&before| before != short && !self.cache.contains(before))
    }

    /// Removes the open piece that a prompt with these keys continues, before the prompt is acquired.
    pub(super) fn goes_on(&mut self, keys: &[PrefixHash], changes: &mut Vec<Change>) {
        if self.open.is_empty() {
            return;
        }
        let held = self.cache.resident(keys);
        if let (Some(parent), Some(next)) = (held.checked_sub(1).map(|at| keys[at]), keys.get(held))
            && let Some(&end) = self.open.get(&parent)
            // A repeated prompt does not continue the chunk.
            && self.begun.get(&end) != Some(next)
        {
            self.open.remove(&parent);
            if end != *next && self.cache.is_leaf(end) {
                self.cache.remove(end, changes);
            }
        }
    }

    /// Forgets a piece that left the cache. Returns the short key that it answered for.
    pub(super) fn left(&mut self, hash: PrefixHash) -> Option<PrefixHash> {
        self.open.remove(&hash);
        let short = self.begun.remove(&hash)?;
        Some(short).filter(|&short| !self.cache.contains(short))
    }

    /// Applies a report on a prompt that is still held and was sent after `sent` releases.
    pub(super) fn reported(
        &mut self,
        report: &Report<'_>,
        sent: u64,
        changes: &mut Vec<Change>,
    ) -> Corrected {
        let before = changes.len();
        let corrected = self.correct(report, sent, changes);
        if let Some(unhinted) = &mut self.unhinted {
            for change in &changes[before..] {
                if let Change::Removed { hash } = change {
                    unhinted.lost(*hash);
                }
            }
        }
        corrected
    }

    fn correct(&mut self, report: &Report<'_>, sent: u64, changes: &mut Vec<Change>) -> Corrected {
        if !self.resets.has_losses() {
            self.learned_before = self.learned;
        }
        let evidence = self.resets.evidence(&self.cache, report, sent);
        let older = if self.cache.order() == Order::Lru {
            self.drop_older(report, sent, changes)
        } else {
            if let Some(missing) = report.missing {
                self.cache.stored_again(missing, changes);
            }
            None
        };
        let is_evicted = self.learned.is_some()
            || self.cache.order() != Order::Lru
            || self.cache.used().0 > self.cache.capacity().0 / 2;
        let mut dropped = older.map_or(0, |(dropped, _)| dropped);
        let when = (sent, self.cache.releases());
        let cleared = self.resets.note(evidence, report.conversation, when, is_evicted);
        if let Some(since) = cleared {
            self.suspicion = None;
            dropped += self.cache.drop_older(released_up_to(since), changes);
            // The losses say nothing about the capacity.
            self.learned = self.learned.and(self.learned_before);
        } else if matches!(older, Some((_, Standing { marked: None, .. }))) {
            self.learn_from_missing(changes);
        }
        if evidence == Evidence::Loss {
            // A prefix that other prompts hold as well is no survivor afterwards.
            self.cache.computed_anew(report.believed);
        }
        if dropped > 0 {
            let by = match cleared {
                Some(_) => Inference::Clear,
                None => Inference::Age,
            };
            self.resets.corrected(report.conversation, by);
        }
        Corrected {
            dropped,
            is_cleared: cleared.is_some(),
        }
    }

    /// Drops what an LRU cache that lacks the report's missing piece cannot hold. Returns the number of keys dropped,
    /// and the piece's position; `None` if the report implies nothing. A piece that was not computed before the prompt
    /// was sent may have come too late.
    fn drop_older(
        &mut self,
        report: &Report<'_>,
        sent: u64,
        changes: &mut Vec<Change>,
    ) -> Option<(usize, Standing)> {
        let standing = |key: Option<PrefixHash>| key.and_then(|key| self.cache.standing(key));
        let Some(missing) = standing(report.missing) else {
            let found = standing(report.found).map_or(0, |found| found.released);
            if found > 0
                && self
                    .suspicion
                    .is_some_and(|(suspect, _)| found < suspect.released)
            {
                self.suspicion = None;
            }
            return None;
        };
        if !(1..=sent).contains(&missing.released) {
            return None;
        }
        let is_second = self.suspicion.is_some_and(|(_, by)| by != report.conversation);
        if report.cached == Tokens::ZERO && !is_second {
            self.suspicion = Some((missing, report.conversation));
            return None;
        }
        if !self.resets.may_correct(report.conversation) {
            return None;
        }
        let suspected = self.suspicion.take();
        let suspected = suspected.map_or(0, |(suspect, _)| self.cache.drop_older(suspect, changes));
        Some((suspected + self.cache.drop_older(missing, changes), missing))
    }

    /// Drops everything that is not held.
    pub(super) fn cleared(&mut self, changes: &mut Vec<Change>) {
        self.suspicion = None;
        self.resets.end_episode(self.cache.releases());
        self.unhinted = None;
        self.cache.drop_older(released_up_to(u64::MAX - 1), changes);
    }

    pub(super) fn forget(&mut self, changes: &mut Vec<Change>) {
        self.suspicion = None;
        self.unhinted = None;
        self.open.clear();
        self.begun.clear();
        self.cache.clear(changes);
        self.resets.end_episode(self.cache.releases());
    }
}

/// Returns the position after everything last released by then.
fn released_up_to(released: u64) -> Standing {
    Standing {
        released: released + 1,
        marked: None,
    }
}
