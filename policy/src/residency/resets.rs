//! Detection of a cache that was cleared without notice: a reset by hand, or an engine's restart between two probes.
//!
//! The order of releases alone does not show it. Conversations that return in their old order each miss the oldest
//! pieces of the mirror, which says nothing about younger ones. So *losses* of different conversations are counted. A
//! loss is a report that finds none of its prompt's older pieces: those last released before the first prompt with a
//! loss was sent. Younger pieces are no evidence either way: a shared system prompt is there again after the first turn.
//! The count starts again after a *survivor*: an older piece that is still there, or a prompt of which the worker has
//! more than the mirror. It does so, too, after [`PATIENCE`] reports without a loss. A prompt that was sent before the
//! last clear was noticed is no evidence of another.
//!
//! [`NEEDED`] losses show a clear where the tokens used since the missing pieces would fit twice into a configured or
//! reported capacity, so that eviction cannot explain them. Otherwise it takes one more, since a smaller cache that
//! conversations use in turn looks the same.
//!
//! Requests that bypass the cache and prompts whose keys never match are losses as well. Where they lead to a false
//! correction, later reports find more than the mirror holds. Each such alarm raises the [`Doubt`] about what was
//! inferred, a clear or the age of other pieces.

use super::mirror::Report;
use crate::cache::{PrefixCache, Standing};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// Losses of different conversations that show a clear.
const NEEDED: usize = 2;
/// Reports without a loss after which losses are forgotten.
const PATIENCE: u32 = 64;
/// Alarms from which on a miss implies nothing about the age of other pieces.
const DISTRUST: u32 = 2;
/// Upper bound on the alarms remembered.
const MOST_ALARMS: u32 = 3;
/// Reports after a correction within which a surplus shows that it was false.
const WATCHED: u32 = 16;
/// Reports without an alarm after which one is forgotten; doubled with each alarm.
const QUIET: u32 = 256;

/// Evidence of a report about a clear before the first prompt of the episode was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The prompt has no older pieces, or too few to tell.
    None,
    /// An older piece is still resident.
    Survivor,
    /// All older pieces are missing.
    Loss,
    /// The prompt has no older pieces, and all newer ones are missing: the losses counted so far are out of date.
    Anew,
}

/// A series of losses without a survivor.
#[derive(Debug)]
struct Episode {
    /// Number of releases when the first prompt was sent. Pieces last released by then are suspected.
    since: u64,
    /// Conversations with a loss, at most as many as are needed to show a clear.
    conversations: Vec<u64>,
    /// Reports since the last loss.
    idle: u32,
}

/// False corrections of one kind that were noticed lately.
#[derive(Clone, Copy, Debug, Default)]
struct Doubt {
    alarms: u32,
    /// Reports since the last alarm.
    quiet: u32,
}

/// The inference that led to a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inference {
    /// Other pieces are older than the missing one.
    Age,
    /// The cache was cleared.
    Clear,
}

#[derive(Debug, Default)]
pub(super) struct Resets {
    episode: Option<Episode>,
    /// Number of releases when the last clear was noticed.
    cleared: u64,
    /// The conversation whose miss was the last to correct the mirror.
    corrected_by: Option<u64>,
    /// The last correction, and the number of reports within which an alarm is attributed to it.
    watched: Option<(Inference, u32)>,
    age: Doubt,
    clear: Doubt,
}

impl Resets {
    /// Forgets the losses, since the cache is known to have been cleared by the time of `releases` releases.
    pub(super) fn end_episode(&mut self, releases: u64) {
        self.episode = None;
        self.watched = None;
        self.cleared = releases;
    }

    /// Returns whether there are losses that may show a clear.
    pub(super) fn has_losses(&self) -> bool {
        self.episode.is_some()
    }

    /// Returns what a report of a prompt, sent after `sent` releases, says about a clear.
    pub(super) fn evidence(&self, cache: &PrefixCache, report: &Report<'_>, sent: u64) -> Evidence {
        if sent <= self.cleared {
            return Evidence::None;
        }
        let finds_nothing = report.cached == Tokens::ZERO;
        let since = match &self.episode {
            Some(episode) => episode.since.min(sent),
            None if finds_nothing => sent,
            None => return Evidence::None,
        };
        match survival(cache, report, since) {
            Evidence::None if finds_nothing && since < sent => match survival(cache, report, sent) {
                Evidence::Loss => Evidence::Anew,
                _ => Evidence::None,
            },
            evidence => evidence,
        }
    }

    /// Counts a report. Returns the position up to which everything is gone, if it completes the evidence of a clear.
    /// `is_evicted` says whether eviction may explain the losses, and `now` is the number of releases.
    pub(super) fn note(
        &mut self,
        evidence: Evidence,
        conversation: u64,
        (sent, now): (u64, u64),
        is_evicted: bool,
    ) -> Option<u64> {
        self.watched = self
            .watched
            .and_then(|(kind, left)| Some((kind, left.checked_sub(1)?)));
        self.age.pass();
        self.clear.pass();
        if let Some(episode) = &mut self.episode {
            episode.idle += 1;
        }
        let is_over = self
            .episode
            .as_ref()
            .is_some_and(|episode| episode.idle > PATIENCE);
        if is_over || matches!(evidence, Evidence::Survivor | Evidence::Anew) {
            self.episode = None;
        }
        if matches!(evidence, Evidence::None | Evidence::Survivor) {
            return None;
        }
        let episode = self.episode.get_or_insert_with(|| Episode {
            since: sent,
            conversations: Vec::new(),
            idle: 0,
        });
        episode.idle = 0;
        if !episode.conversations.contains(&conversation) {
            episode.conversations.push(conversation);
        }
        // 2, 3, 5, 9 with each alarm.
        let doubtful = NEEDED - 1 + (1 << self.clear.alarms);
        if episode.conversations.len() < doubtful.max(NEEDED + usize::from(is_evicted)) {
            return None;
        }
        self.cleared = now;
        self.episode.take().map(|episode| episode.since)
    }

    /// Returns whether a conversation's miss implies that other pieces are gone. A conversation whose keys never match
    /// misses at each turn, so it does not correct the mirror twice in a row.
    pub(super) fn may_correct(&self, conversation: u64) -> bool {
        self.age.alarms < DISTRUST && self.corrected_by != Some(conversation)
    }

    /// Records that a report removed pieces of other prompts.
    pub(super) fn corrected(&mut self, conversation: u64, by: Inference) {
        self.corrected_by = Some(conversation);
        self.watched = Some((by, WATCHED));
    }

    /// Records that a worker found more than its mirror holds.
    pub(super) fn found_more(&mut self) {
        self.episode = None;
        match self.watched.take() {
            Some((Inference::Age, _)) => self.age.alarm(),
            Some((Inference::Clear, _)) => self.clear.alarm(),
            None => {}
        }
    }
}

impl Doubt {
    fn pass(&mut self) {
        self.quiet = self.quiet.saturating_add(1);
        if self.alarms > 0 && self.quiet >= QUIET << self.alarms {
            *self = Self {
                alarms: self.alarms - 1,
                quiet: 0,
            };
        }
    }

    fn alarm(&mut self) {
        *self = Self {
            alarms: (self.alarms + 1).min(MOST_ALARMS),
            quiet: 0,
        };
    }
}

/// Returns [`slice::partition_point`], by two tests where all of the keys or none are in.
fn leading(keys: &[PrefixHash], is_in: impl Fn(&PrefixHash) -> bool) -> usize {
    if keys.last().is_none_or(&is_in) {
        keys.len()
    } else if keys.first().is_some_and(&is_in) {
        keys.partition_point(is_in)
    } else {
        0
    }
}

/// Returns the evidence of the prompt's pieces that were last released by `since`.
fn survival(cache: &PrefixCache, report: &Report<'_>, since: u64) -> Evidence {
    let standing = |key: &_| cache.standing(*key);
    let released = |key: &_| standing(key).map_or(0, |standing: Standing| standing.released);
    // No piece is released after those before it. A piece that was never released is being computed.
    let ran = leading(report.believed, |key| released(key) > 0);
    let newer = leading(&report.believed[..ran], |key| released(key) > since);
    let up_to = |keys: usize| {
        let last = keys.checked_sub(1).map(|last| report.believed[last]);
        last.and_then(|last| cache.tokens_up_to(last))
            .unwrap_or(Tokens::ZERO)
    };
    let Some(first) = report.believed[..ran].get(newer).and_then(standing) else {
        return Evidence::None;
    };
    let again = up_to(newer);
    let old = up_to(ran).saturating_sub(again);
    // Positions within a prompt are estimates.
    let tolerance = Tokens((2 * report.block.0).max(again.0 / 8));
    if report.cached > again + tolerance.max(Tokens(old.0 / 4)) {
        Evidence::Survivor
    } else if old <= tolerance || first.marked.is_some() {
        // Pieces that hints gave up may be gone.
        Evidence::None
    } else {
        Evidence::Loss
    }
}
