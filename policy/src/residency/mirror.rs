//! The model of one worker's cache, and what a worker's reports say against it.
//!
//! A mirror that was wrong once tends to stay wrong: what it believes to be there attracts the conversation's next turn,
//! and nothing tells it otherwise. But each answer reports how much of its prompt was found, and one report says more
//! than that. A cache that drops the least recently used first holds nothing that was used before something that it no
//! longer holds. So where a piece was believed to be resident and was not, *everything that was last given back before
//! that piece was is gone as well*: whether the worker's cache is smaller than configured, was cleared, or is shared with
//! others. Wrong beliefs end after about as many surprises as a random sequence has records (the logarithm of the
//! conversations held), instead of one surprise per conversation.
//!
//! That holds where the least recently used goes first. A cache of another [`Order`] may keep what is older, so there a
//! report speaks of its own prompt alone: what was missing is stored and used anew.
//!
//! A plain prompt is one text whose chunks never restart, so a turn almost never ends with one. What it ends with is an
//! *open* piece, which stands for the tokens that the worker holds past the last full chunk. The next turn repeats those
//! tokens within a fuller chunk, under another key; then the open piece goes, or they would count twice.
//!
//! Where the worker was told what may go first, that holds within what it was told: a missing piece that was marked says
//! that what was marked before it is gone, and nothing of the rest. ([`PrefixCache::drop_older`].)
//!
//! The prompt's own last, short key is asked for by whoever asks the same again: a client that tries once more, or samples.
//! Its tokens are those with which the reply's first piece begins, so it is no piece of its own: the index answers for it
//! as long as that piece is here.
//!
//! An answer that found nothing at all needs a second one of its kind: some requests (log probabilities of the prompt)
//! skip the cache. Until then it is a suspicion, which a hit on something older refutes.

use rustc_hash::FxHashMap;

use super::capacity::LearnedCapacity;
use super::untold::{Compared, Untold};
use crate::cache::{Change, Keep, Lease, Order, Piece, PrefixCache, Standing};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// What an answer reported of the cache, against what was believed of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Tokens of the prompt that were found cached.
    pub cached: Tokens,
    /// The last key of the prompt all of which was found.
    pub found: Option<PrefixHash>,
    /// The first key that was believed resident and of which something was surely missing.
    pub missing: Option<PrefixHash>,
}

#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) cache: PrefixCache,
    /// What goes before a piece of this standing may be gone.
    suspicion: Option<Standing>,
    /// The capacity as answers show it; `None` if it is known.
    learned: Option<LearnedCapacity>,
    /// What the worker would hold if it had been told nothing, once it was told something.
    untold: Option<Box<Untold>>,
    /// The newest open piece after a piece. No more entries than pieces.
    open: FxHashMap<PrefixHash, PrefixHash>,
    /// The short key of the prompt that a piece begins with. No more entries than pieces.
    begun: FxHashMap<PrefixHash, PrefixHash>,
}

impl Mirror {
    pub(super) fn new(capacity: Tokens) -> Self {
        Self {
            cache: PrefixCache::new(capacity),
            suspicion: None,
            learned: None,
            untold: None,
            open: FxHashMap::default(),
            begun: FxHashMap::default(),
        }
    }

    /// The mirror of the next worker in its place.
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

    pub(super) fn capacity_told(&mut self, capacity: Tokens, changes: &mut Vec<Change>) {
        self.learned = None;
        self.cache.set_capacity(capacity, changes);
    }

    /// The worker is about to be told what may go first.
    pub(super) fn is_told(&mut self) {
        if self.cache.order() == Order::Lru {
            self.untold
                .get_or_insert_with(|| Box::new(Untold::of(&self.cache)));
        }
    }

    /// What is cached of a prompt whose first `hits` pieces are, with hints and without.
    pub(super) fn compare(&self, pieces: &[Piece], hits: usize) -> Option<Compared> {
        Some(self.untold.as_ref()?.compare(pieces, hits))
    }

    /// A sequence gives back what it holds.
    pub(super) fn settle(&mut self, lease: Lease, keep: Keep, changes: &mut Vec<Change>) {
        if keep != Keep::All {
            self.is_told();
        }
        if let Some(untold) = &mut self.untold {
            untold.set_capacity(self.cache.capacity());
            untold.used(self.cache.leased(&lease).rev());
        }
        self.cache.release(lease, keep, changes);
    }

    /// More was found than this full mirror holds.
    pub(super) fn found_more(&mut self) {
        let capacity = self.cache.capacity();
        let learned = self.learned.as_mut();
        if let Some(grown) = learned.and_then(|learned| learned.found_more(capacity)) {
            self.cache.set_capacity(grown, &mut Vec::new());
        }
    }

    /// An unmarked piece was missing, so the tokens used since then fill the worker's cache.
    fn learn_from_missing(&mut self, changes: &mut Vec<Change>) {
        let (capacity, used) = (self.cache.capacity(), self.cache.used());
        let learned = self.learned.as_mut();
        if let Some(shrunk) = learned.and_then(|learned| learned.missed(capacity, used)) {
            self.cache.set_capacity(shrunk, changes);
        }
    }

    /// A turn ended within a chunk: `end`, after `parent`, is what is held of it.
    pub(super) fn ends_open(&mut self, parent: PrefixHash, end: PrefixHash) {
        self.open.insert(parent, end);
    }

    /// A reply's piece `first` goes on within the chunk that its prompt's key `short` ends in. Returns the key that this was
    /// said of before.
    pub(super) fn begins(&mut self, first: PrefixHash, short: PrefixHash) -> Option<PrefixHash> {
        let before = self.begun.insert(first, short)?;
        Some(before).filter(|&before| before != short && !self.cache.contains(before))
    }

    /// A prompt of these keys is about to be held. If it goes on within a chunk that was left open, what stood for that
    /// goes.
    pub(super) fn goes_on(&mut self, keys: &[PrefixHash], changes: &mut Vec<Change>) {
        if self.open.is_empty() {
            return;
        }
        let held = self.cache.resident(keys);
        if let (Some(parent), Some(next)) = (held.checked_sub(1).map(|at| keys[at]), keys.get(held))
            && let Some(&end) = self.open.get(&parent)
            // Who asks the same again does not go on.
            && self.begun.get(&end) != Some(next)
        {
            self.open.remove(&parent);
            if end != *next && self.cache.is_leaf(end) {
                self.cache.remove(end, changes);
            }
        }
    }

    /// A piece left the cache. Returns the key that it answered for as well.
    pub(super) fn left(&mut self, hash: PrefixHash) -> Option<PrefixHash> {
        self.open.remove(&hash);
        let short = self.begun.remove(&hash)?;
        Some(short).filter(|&short| !self.cache.contains(short))
    }

    /// Takes a report of a prompt that is still held; returns how many keys are believed there no longer.
    pub(super) fn reported(&mut self, report: &Report, changes: &mut Vec<Change>) -> usize {
        let before = changes.len();
        let dropped = self.correct(report, changes);
        if let Some(untold) = &mut self.untold {
            for change in &changes[before..] {
                if let Change::Removed { hash } = change {
                    untold.lost(*hash);
                }
            }
        }
        dropped
    }

    fn correct(&mut self, report: &Report, changes: &mut Vec<Change>) -> usize {
        if self.cache.order() != Order::Lru {
            if let Some(missing) = report.missing {
                self.cache.stored_again(missing, changes);
            }
            return 0;
        }
        let standing = |key: Option<PrefixHash>| key.and_then(|key| self.cache.standing(key));
        let Some(missing) = standing(report.missing) else {
            let found = standing(report.found).map_or(0, |found| found.released);
            if found > 0 && self.suspicion.is_some_and(|suspect| found < suspect.released) {
                self.suspicion = None;
            }
            return 0;
        };
        if report.cached == Tokens::ZERO && self.suspicion.is_none() {
            self.suspicion = Some(missing);
            return 0;
        }
        let suspected = self.suspicion.take();
        let suspected = suspected.map_or(0, |suspect| self.cache.drop_older(suspect, changes));
        let dropped = suspected + self.cache.drop_older(missing, changes);
        if missing.marked.is_none() {
            self.learn_from_missing(changes);
        }
        dropped
    }

    /// Nothing is there but what is held.
    pub(super) fn cleared(&mut self, changes: &mut Vec<Change>) {
        self.suspicion = None;
        self.untold = None;
        let than_everything = Standing {
            released: u64::MAX,
            marked: None,
        };
        self.cache.drop_older(than_everything, changes);
    }

    pub(super) fn forget(&mut self, changes: &mut Vec<Change>) {
        self.suspicion = None;
        self.untold = None;
        self.open.clear();
        self.begun.clear();
        self.cache.clear(changes);
    }
}
