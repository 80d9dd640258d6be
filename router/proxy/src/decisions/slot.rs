//! One decision in a slot of fixed size.

use policy::ids::WorkerId;
use policy::route::{Costs, Overridden, PolicyName, Reason, Terms};
use policy::slo::{Cause, Parts};
use policy::units::{Millis, Tokens};

use super::NewDecision;
use telemetry::context::TraceId;

/// Workers whose terms are kept, including the chosen one.
pub const ROWS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> Short<N> {
    const EMPTY: Self = Self {
        length: 0,
        bytes: [0; N],
    };

    fn set(&mut self, text: &[u8]) {
        let length = text.len().min(N).min(usize::from(u8::MAX));
        self.bytes[..length].copy_from_slice(&text[..length]);
        // Truncated above to what a byte holds.
        self.length = length as u8;
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Returns the text without a partial last character.
    pub(super) fn text(&self) -> String {
        let text = String::from_utf8_lossy(self.as_bytes());
        text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
    }
}

/// A worker's [`Terms`], to seven digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub worker: u32,
    pub ready: bool,
    pub cached: u32,
    pub uncached: u32,
    pub costs: Costs<f32>,
    pub score: f32,
}

impl Row {
    const EMPTY: Self = Self {
        worker: 0,
        ready: false,
        cached: 0,
        uncached: 0,
        costs: Costs::all(0.0),
        score: 0.0,
    };

    pub(super) fn of(terms: &Terms) -> Self {
        Self {
            worker: terms.worker.0,
            ready: terms.ready,
            cached: narrow(terms.cached),
            uncached: narrow(terms.uncached),
            costs: terms.costs().map(|cost| cost as f32),
            score: terms.score as f32,
        }
    }

    /// Returns the predicted time to first token on this worker.
    #[must_use]
    pub fn predicted_ttft_ms(&self) -> f32 {
        let costs = &self.costs;
        costs.wait_ms + costs.marginal_ms + costs.fixed_ms + costs.overhead_ms
    }
}

fn narrow(tokens: Tokens) -> u32 {
    u32::try_from(tokens.0).unwrap_or(u32::MAX)
}

/// Summary of the workers whose terms are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Number of workers.
    pub workers: u32,
    /// Number of ready workers among them.
    pub ready: u32,
    /// The worker that holds most of the prompt, and its tokens.
    pub holder: Option<(u32, u32)>,
}

/// Outcome of a decision, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Came {
    /// Metric label of the attempt's outcome; `None` while the attempt is running.
    pub outcome: Option<&'static str>,
    /// Time from the turn's arrival to its end.
    pub took: Millis,
    /// Time from the turn's arrival to its first token.
    pub ttft: Option<Millis>,
    /// Whether the objective applies to the response.
    pub is_judged: bool,
    /// Tokens of prompt and response, as the worker counted them.
    pub counted: Option<[u64; 2]>,
    /// Cached tokens, as the worker reported them.
    pub cached: Option<u64>,
    /// Components of the time to first token.
    pub parts: Option<Parts>,
    /// Cause of a missed objective.
    pub cause: Option<Cause>,
    /// Computed prompt tokens that another worker held, and those that were wrongly predicted to be cached on this one.
    pub avoidable: [u64; 2],
}

impl Came {
    const NOT_YET: Self = Self {
        outcome: None,
        took: Millis::ZERO,
        ttft: None,
        is_judged: true,
        counted: None,
        cached: None,
        parts: None,
        cause: None,
        avoidable: [0; 2],
    };
}

/// A recorded decision.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Position in the ring's history; `u64::MAX` for an empty slot.
    position: u64,
    pub(super) sequence: u64,
    pub(super) request: Short<128>,
    pub(super) model: Short<64>,
    pub(super) class: Short<64>,
    pub(super) trace: Option<TraceId>,
    pub(super) conversation: Option<u64>,
    pub(super) objective: Millis,
    pub(super) arrived: Millis,
    pub(super) held: Millis,
    pub(super) prompt: Tokens,
    /// The most prompt tokens that a ready worker, or the chosen one, was believed to hold.
    pub(super) available: u32,
    pub(super) policy: PolicyName,
    pub(super) reason: Reason,
    pub(super) overridden: Overridden,
    pub(super) asked: Short<32>,
    kept: u8,
    rows: [Row; ROWS],
    pub(super) rest: Rest,
    pub came: Came,
}

impl Slot {
    pub(super) const EMPTY: Self = Self {
        position: u64::MAX,
        sequence: 0,
        request: Short::EMPTY,
        model: Short::EMPTY,
        class: Short::EMPTY,
        trace: None,
        conversation: None,
        objective: Millis::ZERO,
        arrived: Millis::ZERO,
        held: Millis::ZERO,
        prompt: Tokens::ZERO,
        available: 0,
        policy: PolicyName::Tail,
        reason: Reason::LeastCost,
        overridden: Overridden {
            class: false,
            request: false,
        },
        asked: Short::EMPTY,
        kept: 0,
        rows: [Row::EMPTY; ROWS],
        rest: Rest {
            workers: 0,
            ready: 0,
            holder: None,
        },
        came: Came::NOT_YET,
    };

    pub(super) fn position(&self) -> Option<u64> {
        (self.position != u64::MAX).then_some(self.position)
    }

    pub(super) fn write(&mut self, position: u64, made: &NewDecision<'_>) {
        let decision = made.decision;
        self.position = position;
        self.sequence = decision.sequence;
        self.request.set(made.request);
        self.model.set(made.model.as_bytes());
        self.class.set(made.class.as_bytes());
        self.trace = made.trace;
        self.conversation = made.conversation;
        self.objective = made.objective;
        self.arrived = made.arrived;
        self.held = made.held;
        self.prompt = made.prompt;
        let ready = decision.terms.iter().filter(|terms| terms.ready);
        let most = ready.map(|terms| terms.cached).max().unwrap_or_default();
        self.available = narrow(most.max(decision.chosen().cached));
        self.policy = decision.policy;
        self.reason = decision.reason;
        self.overridden = decision.overridden;
        self.asked.set(made.asked.as_bytes());
        self.came = Came::NOT_YET;
        let mut best = [0; ROWS - 1];
        let others = closest(&decision.terms, decision.chosen, &mut best);
        self.rows[0] = Row::of(decision.chosen());
        for (row, at) in self.rows[1..].iter_mut().zip(&best[..others]) {
            *row = Row::of(&decision.terms[*at]);
        }
        // At most ROWS.
        self.kept = 1 + others as u8;
        self.rest = self.summarise(&decision.terms);
    }

    fn summarise(&self, terms: &[Terms]) -> Rest {
        let kept = self.rows();
        if terms.len() <= kept.len() {
            return Self::EMPTY.rest;
        }
        let left_out = |terms: &&Terms| !kept.iter().any(|row| row.worker == terms.worker.0);
        let (mut ready, mut holder) = (0, (WorkerId(0), Tokens::ZERO));
        for terms in terms.iter() {
            ready += u32::from(terms.ready);
            if terms.cached > holder.1 && left_out(&terms) {
                holder = (terms.worker, terms.cached);
            }
        }
        let kept_ready = kept.iter().filter(|row| row.ready).count();
        Rest {
            workers: (terms.len() - kept.len()) as u32,
            ready: ready.saturating_sub(kept_ready as u32),
            holder: (holder.1 > Tokens::ZERO).then(|| (holder.0.0, narrow(holder.1))),
        }
    }

    /// Returns the kept workers: the chosen one, then those that could be chosen, the best first.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows[..usize::from(self.kept).min(ROWS)]
    }

    /// Returns the chosen worker.
    #[must_use]
    pub fn chosen(&self) -> Option<&Row> {
        self.rows().first()
    }

    /// Returns the second best worker, if it could be chosen.
    #[must_use]
    pub fn runner_up(&self) -> Option<&Row> {
        self.rows()
            .get(1)
            .filter(|row| row.ready && row.score.is_finite())
    }

    /// Returns the time of the first token; of the arrival while there is none.
    pub(super) fn began(&self) -> Millis {
        self.arrived + self.came.ttft.unwrap_or(Millis::ZERO)
    }

    /// Returns whether the first token missed the objective.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.came.is_judged && self.came.ttft.is_some_and(|ttft| ttft > self.objective)
    }

    /// Returns whether the first token is late, or predicted to be late.
    #[must_use]
    pub fn is_predicted_late(&self) -> bool {
        let predicted = |row: &Row| self.held + Millis(f64::from(row.predicted_ttft_ms()));
        match self.came.ttft {
            Some(_) => self.is_late(),
            None => self.chosen().is_some_and(|row| predicted(row) > self.objective),
        }
    }
}

/// Fills `best` with the workers that have the best scores after the chosen one. Returns their number.
fn closest(terms: &[Terms], chosen: usize, best: &mut [usize; ROWS - 1]) -> usize {
    let before = |one: usize, other: usize| {
        let (one, other) = (&terms[one], &terms[other]);
        (!one.ready)
            .cmp(&!other.ready)
            .then_with(|| one.score.total_cmp(&other.score))
            .is_lt()
    };
    let mut count = 0;
    for at in (0..terms.len()).filter(|at| *at != chosen) {
        if count == best.len() && !before(at, best[count - 1]) {
            continue;
        }
        let place = best[..count].partition_point(|&other| !before(at, other));
        count = (count + 1).min(best.len());
        best.copy_within(place..count - 1, place + 1);
        best[place] = at;
    }
    count
}
