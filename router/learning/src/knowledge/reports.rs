//! Reports of responses about a prompt: its counted tokens, and how many of them were cached.

use policy::fingerprint::Chain;
use policy::ids::WorkerId;
use policy::residency::{Corrected, Report, Reservation};
use policy::units::Tokens;

use super::Knowledge;
use super::counted::CountedTurn;
use super::event_evidence::EventEvidence;
use super::lookup::PredictionSource;
use super::models::Ratio;
use super::scale::Scale;

/// A worker's report of a prompt's cached tokens, with the prediction made when it was sent.
#[derive(Debug)]
pub struct Reported<'a> {
    pub worker: WorkerId,
    pub model: &'a str,
    /// Key of the prompt's conversation; 0 without one.
    pub conversation: u64,
    /// Keys of the prompt.
    pub prompt: &'a Chain,
    /// Positions in tokens that the prediction assumed.
    pub scale: &'a Scale,
    /// The prompt's hold in the mirror.
    pub hold: Option<&'a Reservation>,
    /// Number of leading keys that the mirror held.
    pub mirrored: usize,
    /// Source of the prediction.
    pub source: PredictionSource,
    pub predicted: u64,
    pub cached: u64,
}

impl Knowledge {
    /// Records the positions of a turn's keys from its counted tokens and binds the keys to cache blocks. Returns the
    /// positions of the prompt's keys.
    pub fn turn_over(&self, turn: &CountedTurn<'_>) -> Scale {
        let ratio = self.models.of(turn.model);
        let places = self.offsets.counted(turn, ratio);
        self.tails.counted(turn);
        if let (Some(events), Some(session)) = (self.events.get(turn.worker), turn.session)
            && events.is_live()
        {
            self.bind(&events, session, turn, ratio);
        }
        places
    }

    /// Binds a turn's keys to the blocks that its worker's events name.
    fn bind(&self, events: &EventEvidence, session: [u64; 2], turn: &CountedTurn<'_>, ratio: Ratio) {
        let all = turn.reply.map_or_else(
            || turn.prompt.clone(),
            |(parent, reply)| turn.prompt.with_reply(parent, reply),
        );
        let scale = self.offsets.scale(&all, turn.media, ratio);
        events.turn_over(turn, session, &all, &scale);
    }

    /// Compares a worker's report of cached tokens with its mirror, which still holds the prompt, and corrects the
    /// mirror.
    pub fn reported(&self, report: &Reported<'_>) -> Corrected {
        let block = self
            .events
            .get(report.worker)
            .map_or(1, |events| events.block_size());
        let &Reported {
            prompt,
            scale,
            cached,
            ..
        } = report;
        if report.predicted != cached {
            self.misplaced(report, block);
        }
        if report.predicted.abs_diff(cached) > block
            && matches!(report.source, PredictionSource::Events { .. })
            && let Some(events) = self.events.get(report.worker)
        {
            events.change(|evidence| evidence.contradicted(prompt.hashes()));
        }
        let more = cached.saturating_sub(report.predicted);
        let is_more = matches!(report.source, PredictionSource::Mirror { .. })
            && more > 2 * block.max(report.predicted / 8);
        let believed = report.mirrored.min(prompt.len());
        let found = scale.found(prompt, cached).min(believed);
        let missing = scale.missing(prompt, believed, cached, block);
        let said = Report {
            conversation: report.conversation,
            believed: &prompt.hashes()[..believed],
            block: Tokens(block),
            cached: Tokens(cached),
            found: found.checked_sub(1).map(|at| prompt.hashes()[at]),
            missing: missing.map(|at| prompt.hashes()[at]),
        };
        self.update(report.worker, |residency| {
            if is_more {
                residency.found_more(report.worker);
            }
            let corrected = report.hold.map(|hold| residency.reported(hold, &said));
            corrected.unwrap_or_default()
        })
    }

    /// Corrects token positions. If all blocks of the first keys were cached, their text ends at another token than was
    /// believed. A mirror may instead be wrong about the blocks, so a prediction from it moves only positions that were
    /// not counted.
    fn misplaced(&self, report: &Reported<'_>, block: u64) {
        let (edge, is_exact) = match report.source {
            PredictionSource::Events { edge: Some(edge) } => (edge, true),
            // If the following text is known too, the cache ends there and not the text.
            PredictionSource::Mirror { edge } if !self.offsets.knows_past(report.prompt, edge) => {
                (edge, false)
            }
            PredictionSource::Mirror { .. } | PredictionSource::Events { edge: None } => return,
        };
        let Some(&key) = edge.checked_sub(1).and_then(|at| report.prompt.hashes().get(at)) else {
            return;
        };
        let off = report.predicted.abs_diff(report.cached);
        // A surplus block is certain whatever the source; a missing block may have been evicted.
        if off == block && (is_exact || report.cached > report.predicted) {
            let more = self.offsets.correct(key, report.cached, block, is_exact);
            // For a counted position, the surplus belongs to the template.
            if report.cached > report.predicted {
                self.models.widen(report.model, more);
            }
        }
        if !is_exact && off <= block.max(report.predicted / 8) {
            let guess = report.scale.tokens(report.prompt.span(edge));
            self.offsets.refine(key, guess, report.cached, block);
        }
    }
}
