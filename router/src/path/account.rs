//! What came of a decision: recorded beside it, and counted.
//!
//! An account is opened when an attempt goes out and closed when it ends. What a violation was caused by is said by
//! [`policy::slo::Parts`]; here is only what it is told.

use policy::cost::PrefillCost;
use policy::slo::{EngineTimes, FirstToken, Parts};
use policy::units::{Millis, Tokens};

use super::ask::Asked;
use super::select::Choice;
use super::turn::Turn;
use crate::app::App;
use crate::decisions::{Came, Made, Ticket};
use fleet::Worker;
use protocol::watch::Usage;
use telemetry::traces::Note;

/// The account of one attempt.
#[derive(Debug)]
pub struct Account {
    ticket: Option<Ticket>,
    /// From the turn's arrival until it was sent.
    held: Millis,
    wait: Millis,
    predicted_ttft: Millis,
    predicted_cached: Tokens,
    /// Most tokens of the prompt that a worker which could have been chosen held.
    held_elsewhere: Tokens,
    /// Tokens of the prompt that could have been cached, as full blocks.
    cacheable: Tokens,
    cost: PrefillCost,
    objective: Millis,
    prompt: Tokens,
    first: Option<First>,
    /// Where the cause is noted as well, if requests are traced.
    pub note: Note,
}

/// The first token that was seen.
#[derive(Clone, Copy, Debug)]
struct First {
    ttft: Millis,
    streamed: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// In a word.
    pub outcome: &'static str,
    /// What the worker counted.
    pub usage: Option<Usage>,
    /// The engine's own times.
    pub engine: Option<EngineTimes>,
    /// When, since the turn's arrival.
    pub took: Millis,
    /// The class of its objective.
    pub class: &'a str,
}

impl Account {
    /// A turn goes out.
    #[must_use]
    pub fn open(app: &App, turn: &Turn, choice: &Choice) -> Self {
        let (terms, worker) = (choice.decision.chosen(), &choice.worker);
        let held = app.clock.now() - turn.arrived;
        let most = |ready: bool| {
            let known = choice.decision.terms.iter().filter(|terms| terms.ready || !ready);
            known.map(|terms| terms.cached).max().unwrap_or_default()
        };
        let prompt = choice.matched.prompt;
        let block = u64::from(worker.spec.block_size.max(1));
        let history = turn.expected.history.min(prompt.saturating_sub(Tokens(1)));
        let history = Tokens(history.0 / block * block);
        let live = app.live();
        let ticket = app.decisions.record(&Made {
            request: turn.request.as_bytes(),
            trace: turn.trace,
            conversation: turn.session.as_ref().map(|session| session.key),
            model: &turn.model,
            class: turn.goal.origin.name(&live.objective),
            objective: turn.goal.ttft,
            arrived: turn.arrived,
            held,
            prompt,
            asked: turn.asked.as_deref().map_or("", Asked::text),
            decision: &choice.decision,
        });
        Self {
            ticket,
            held,
            wait: choice.view.wait,
            predicted_ttft: terms.predicted_ttft(),
            predicted_cached: terms.cached,
            held_elsewhere: most(true),
            cacheable: history.max(most(false)),
            cost: fitted(worker, &choice.view.cost),
            objective: turn.goal.ttft,
            prompt,
            first: None,
            note: Note::default(),
        }
    }

    /// The first token passed. Returns how much later than predicted it came; below zero, earlier.
    pub fn first_token(&mut self, app: &App, ttft: Millis, streamed: bool) -> Millis {
        self.first = Some(First { ttft, streamed });
        self.update(app, |came| came.ttft = Some(ttft));
        ttft - self.held - self.predicted_ttft
    }

    /// What the first token took beside what the engine says of queue and prefill. Of an answer that does not stream the
    /// whole of it is beside them, so nothing is known.
    #[must_use]
    pub fn beside(&self, engine: EngineTimes) -> Option<Millis> {
        let first = self.first.filter(|first| first.streamed)?;
        Some(first.ttft - self.held - engine.queue - engine.prefill)
    }

    /// The attempt ended.
    pub fn close(&self, app: &App, end: End<'_>) {
        let parts = self.first.map(|first| self.parts(first, &end));
        let late = self.first.is_some_and(|first| first.ttft > self.objective);
        let cause = parts.filter(|_| late).map(|parts| parts.cause(self.objective));
        if let Some(cause) = cause {
            app.metrics.violation(end.class, cause);
            self.note.cause(cause.as_str());
        }
        let avoidable = self.avoidable(&end);
        app.metrics.avoidable(avoidable);
        self.update(app, |came| {
            came.outcome = Some(end.outcome);
            came.took = end.took;
            came.counted = end.usage.map(|usage| [usage.prompt, usage.completion]);
            came.cached = end.usage.and_then(|usage| usage.cached);
            came.parts = parts;
            came.cause = cause;
            came.avoidable = avoidable;
        });
    }

    fn update(&self, app: &App, update: impl FnOnce(&mut Came)) {
        if let Some(ticket) = self.ticket {
            app.decisions.update(ticket, update);
        }
    }

    fn parts(&self, first: First, end: &End<'_>) -> Parts {
        let counted = end.usage.filter(|usage| usage.prompt > 0);
        let prompt = counted.map_or(self.prompt, |usage| Tokens(usage.prompt));
        let cached = counted.and_then(|usage| usage.cached).map(Tokens);
        Parts::of(&FirstToken {
            ttft: first.ttft,
            held: self.held,
            wait: self.wait,
            engine: end.engine,
            prompt,
            cached: cached.unwrap_or(self.predicted_cached),
            cacheable: self.cacheable,
            cost: self.cost,
            streamed: first.streamed,
        })
    }

    /// Prompt tokens that were computed although a worker that was passed over held them, and although they were predicted
    /// to be here. Known where the worker says what it found.
    fn avoidable(&self, end: &End<'_>) -> [u64; 2] {
        let Some(cached) = end.usage.and_then(|usage| usage.cached).map(Tokens) else {
            return [0; 2];
        };
        let here = self.predicted_cached.max(cached);
        let elsewhere = self.held_elsewhere.saturating_sub(here);
        let mistaken = self.predicted_cached.saturating_sub(cached);
        [elsewhere.0, mistaken.0]
    }
}

/// What a worker was measured or written to cost, and only where nobody did, what was learned since: a worker that has
/// become slow is to be seen as slow when that has been learned, too.
fn fitted(worker: &Worker, learned: &PrefillCost) -> PrefillCost {
    if worker.spec.cost_is_known {
        worker.spec.cost
    } else {
        *learned
    }
}
