//! Lookups of prompts: their length in tokens, and how much of them each worker holds.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use policy::evidence::Resident;
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::index::Reach;
use policy::units::Tokens;
use protocol::fingerprint::{Extent, Fingerprint};

use super::Knowledge;
use super::event_evidence::EventEvidence;
use super::plain_prompt_ends::Tail;
use super::scale::Scale;

/// The source of a prediction of cached tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionSource {
    /// The prediction is from the mirror of the worker's cache.
    Mirror {
        /// Number of leading keys that the mirror holds.
        edge: usize,
    },
    /// The prediction is from the worker's cache events.
    Events {
        /// Number of leading keys known from the events, if the worker holds all of them; `None` if its cache ends
        /// before.
        edge: Option<usize>,
    },
}

impl PredictionSource {
    /// Returns the name of the source in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mirror { .. } => "mirror",
            Self::Events { .. } => "events",
        }
    }
}

/// Length of a prompt and where it is resident. Owned by the caller and reused between prompts.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Tokens of the prompt, counted or estimated.
    pub prompt: Tokens,
    /// Leading tokens that a worker holds, by worker slot.
    pub resident: Vec<Tokens>,
    /// Source of the resident tokens, by worker slot.
    pub sources: Vec<PredictionSource>,
    /// Number of leading keys that the mirror holds, by worker slot.
    pub mirrored: Vec<usize>,
    /// Tokens that a worker is believed to hold in total, by worker slot.
    pub indexed: Vec<Tokens>,
    /// Weighted count of the conversations that live on each worker, by slot.
    pub living: Vec<f64>,
    /// Positions of the chain's ends in tokens.
    pub scale: Scale,
}

/// Buffers reused between requests, so that a lookup allocates nothing.
#[derive(Default)]
struct LookupBuffers {
    reach: Reach,
    /// Keys of the previous turn that the prompt continues from within a chunk: the shared ones, and its last one.
    ended: Vec<PrefixHash>,
    to_end: Reach,
}

thread_local! {
    static SCRATCH: RefCell<LookupBuffers> = RefCell::default();
}

struct LookupRequest<'a> {
    chain: &'a Chain,
    scale: &'a Scale,
    tail: Option<Tail>,
    ended: &'a [PrefixHash],
    mirrored: usize,
    mirrored_to_end: bool,
    prompt: u64,
}

impl LookupRequest<'_> {
    /// If a match of `keys` keys reaches the chunk in which the previous turn ended, returns that turn's last key, and
    /// the tokens held if the worker has this key.
    fn past(&self, keys: usize) -> Option<(Option<PrefixHash>, u64)> {
        let tail = self.tail.filter(|tail| tail.keys == keys)?;
        Some((tail.end, tail.tokens.saturating_sub(1)))
    }
}

impl Knowledge {
    /// Looks up a prompt.
    pub fn look_up(&self, model: &str, fingerprint: &Fingerprint, workers: usize) -> Match {
        let mut found = Match::default();
        self.look_up_into(model, fingerprint, workers, &mut found);
        found
    }

    /// Looks up a prompt like [`Self::look_up`], but overwrites an earlier result and reuses its memory.
    pub fn look_up_into(&self, model: &str, fingerprint: &Fingerprint, workers: usize, found: &mut Match) {
        let chain = &fingerprint.chain;
        let tail = self.scale(fingerprint, model, &mut found.scale);
        let (Extent::Bytes(units) | Extent::Tokens(units)) = fingerprint.extent;
        let prompt = found.scale.tokens(units);
        found.prompt = Tokens(prompt);
        self.conversations.living_into(workers, &mut found.living);
        found.resident.clear();
        found.sources.clear();
        found.mirrored.clear();
        found.indexed.clear();
        SCRATCH.with_borrow_mut(|LookupBuffers { reach, ended, to_end }| {
            self.index.lookup(chain.hashes(), reach);
            if !reach.is_complete() {
                self.incomplete.fetch_add(1, Ordering::Relaxed);
            }
            ended.clear();
            if let Some((tail, end)) = tail.and_then(|tail| Some((tail, tail.end?))) {
                ended.extend_from_slice(&chain.hashes()[..tail.keys]);
                ended.push(end);
                self.index.lookup(ended, to_end);
            }
            let (events, held) = (self.events.read(), self.held.read());
            for worker in (0..workers as u32).map(WorkerId) {
                let mirrored = reach.of(worker) as usize;
                let asked = LookupRequest {
                    chain,
                    scale: &found.scale,
                    tail,
                    ended,
                    mirrored,
                    mirrored_to_end: !ended.is_empty() && to_end.of(worker) as usize == ended.len(),
                    prompt,
                };
                let (tokens, source) = resident(events.get(worker.index()).map(Arc::as_ref), &asked);
                found.resident.push(tokens);
                found.sources.push(source);
                found.mirrored.push(mirrored);
                let held = held.get(worker.index());
                found
                    .indexed
                    .push(held.map_or(Tokens::ZERO, |held| Tokens(held.load(Ordering::Relaxed))));
            }
        });
    }

    /// Builds the scale of a prompt. Returns where the turn ended that the prompt continues from within a chunk.
    fn scale(&self, fingerprint: &Fingerprint, model: &str, scale: &mut Scale) -> Option<Tail> {
        let chain = &fingerprint.chain;
        if let Extent::Tokens(_) = fingerprint.extent {
            scale.read_exact();
            return None;
        }
        self.offsets
            .scale_into(chain, &fingerprint.media, self.models.of(model), scale);
        let tail = self.tails.of(chain)?;
        scale.go_on(chain, &tail);
        Some(tail)
    }
}

/// Returns the number of leading tokens of a prompt that are cached on a worker: whole blocks, and never the last
/// token.
fn resident(events: Option<&EventEvidence>, asked: &LookupRequest<'_>) -> (Tokens, PredictionSource) {
    let &LookupRequest { chain, mirrored, .. } = asked;
    let mirror = match asked.past(mirrored) {
        Some((end, held)) if end.is_none() || asked.mirrored_to_end => held,
        _ => asked.scale.held(chain.span(mirrored)),
    };
    let believed = PredictionSource::Mirror { edge: mirrored };
    let Some(events) = events else {
        return (Tokens(mirror), believed);
    };
    let (resident, block) = events.resident(chain.hashes());
    let (tokens, source) = match resident {
        // The mirror also has keys that the events lack so far: those of a turn being computed.
        Some(Resident {
            whole: true, known, ..
        }) if mirrored > known => (mirror, believed),
        Some(Resident { tokens, known, whole }) => {
            let edge = whole.then_some(known);
            let past = edge.and_then(|known| asked.past(known));
            let past = past.map_or(0, |(end, held)| match events.resident(asked.ended).0 {
                _ if end.is_none() => held,
                Some(Resident {
                    known, whole: true, ..
                }) if known == asked.ended.len() => held,
                Some(further) => further.tokens.0,
                None => 0,
            });
            (past.max(tokens.0), PredictionSource::Events { edge })
        }
        None => (mirror, believed),
    };
    let whole_blocks = tokens.min(asked.prompt.saturating_sub(1)) / block * block;
    (Tokens(whole_blocks), source)
}
