//! Records the outcome of a decision and counts it. [`policy::slo::Parts`] attributes the cause of a violation.

use policy::cost::PrefillCost;
use policy::slo::{Cause, EngineTimes, FirstToken, Parts};
use policy::units::{Millis, Tokens};

use super::ask::Asked;
use super::objective::Goal;
use super::select::Choice;
use super::turn::Turn;
use crate::Proxy;
use crate::decisions::Decisions;
use crate::decisions::{Came, NewDecision, Ticket};
use fleet::Worker;
use protocol::watch::Usage;

/// The account of one attempt.
#[derive(Debug)]
pub struct Account {
    ticket: Option<Ticket>,
    held: Millis,
    wait: Millis,
    predicted_ttft: Millis,
    predicted_cached: Tokens,
    /// The most prompt tokens cached on any ready worker.
    available: Tokens,
    /// Prompt tokens that could have been cached, in full blocks.
    cacheable: Tokens,
    cost: PrefillCost,
    is_slow: bool,
    /// Share of the wait that slow workers cause.
    slowed_share: f64,
    goal: Goal,
    prompt: Tokens,
    first: Option<First>,
}

#[derive(Clone, Copy, Debug)]
struct First {
    ttft: Millis,
    streamed: bool,
}

/// The end of an attempt, as its account records it.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Metric label of the outcome.
    pub outcome: &'static str,
    pub usage: Option<Usage>,
    /// Timings that the engine reported.
    pub engine: Option<EngineTimes>,
    /// Time since the turn's arrival.
    pub took: Millis,
    /// Class of the turn's objective.
    pub class: &'a str,
}

impl Account {
    /// Opens the account of an attempt and records its decision.
    #[must_use]
    pub fn open(proxy: &Proxy, turn: &Turn, choice: &Choice) -> Self {
        let (terms, worker) = (choice.decision.chosen(), &choice.worker);
        let held = choice.at - turn.arrived;
        let most = |ready: bool| {
            let known = choice.decision.terms.iter().filter(|terms| terms.ready || !ready);
            known.map(|terms| terms.cached).max().unwrap_or_default()
        };
        let prompt = choice.matched.prompt;
        let block = u64::from(worker.spec.block_size.max(1));
        let history = turn.expected.history.min(prompt.saturating_sub(Tokens(1)));
        let history = Tokens(history.0 / block * block);
        let slowdown = worker.slowdown();
        let ticket = proxy.decisions.record(&NewDecision {
            request: turn.request.as_bytes(),
            trace: turn.trace,
            conversation: turn.session.as_ref().map(|session| session.key),
            model: &turn.model,
            class: turn.class(),
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
            available: most(true).max(terms.cached),
            cacheable: history.max(most(false)),
            cost: slowdown
                .own
                .map_or_else(|| fitted(worker, &choice.view.cost), |slow| slow.baseline),
            is_slow: slowdown.own.is_some(),
            slowed_share: slowdown.queue_share,
            goal: turn.goal,
            prompt,
            first: None,
        }
    }

    /// Records the first token. Returns its delay relative to the prediction; negative if it was early.
    pub fn first_token(&mut self, decisions: &Decisions, ttft: Millis, streamed: bool) -> Millis {
        self.first = Some(First { ttft, streamed });
        let is_judged = self.goal.judges(streamed);
        self.update(decisions, |came| {
            came.ttft = Some(ttft);
            came.is_judged = is_judged;
        });
        ttft - self.held - self.predicted_ttft
    }

    /// Returns the time by which the first token exceeded the objective, zero within it. `None` without a first token,
    /// or if the objective does not apply to the response.
    #[must_use]
    pub fn excess(&self) -> Option<Millis> {
        let first = self.first.filter(|first| self.goal.judges(first.streamed))?;
        Some(first.ttft.saturating_sub(self.goal.ttft))
    }

    /// Returns whether the first token was within the objective. `None` as for [`Self::excess`].
    #[must_use]
    pub fn is_within(&self) -> Option<bool> {
        Some(self.excess()? <= Millis::ZERO)
    }

    /// Returns the time to first token beyond the engine's queue and prefill times. `None` if the response does not
    /// stream.
    #[must_use]
    pub fn beside(&self, engine: EngineTimes) -> Option<Millis> {
        let first = self.first.filter(|first| first.streamed)?;
        Some(first.ttft - self.held - engine.queue - engine.prefill)
    }

    /// Records and counts the outcome of the attempt. Returns the cause of a missed objective.
    pub fn close(&self, proxy: &Proxy, end: End<'_>) -> Option<Cause> {
        let parts = self.first.map(|first| self.parts(first, &end));
        let is_late = self.is_within() == Some(false);
        let cause = parts.filter(|_| is_late).map(|parts| parts.cause(self.goal.ttft));
        if let Some(cause) = cause {
            proxy.state.routing.metrics.violation(end.class, cause);
        }
        let avoidable = self.avoidable(&end);
        proxy.state.routing.metrics.avoidable(avoidable);
        if let Some(hits) = self.hits(&end) {
            proxy.state.routing.metrics.hits(hits);
        }
        self.update(&proxy.decisions, |came| {
            came.outcome = Some(end.outcome);
            came.took = end.took;
            came.counted = end.usage.map(|usage| [usage.prompt, usage.completion]);
            came.cached = end.usage.and_then(|usage| usage.cached);
            came.parts = parts;
            came.cause = cause;
            came.avoidable = avoidable;
        });
        cause
    }

    fn update(&self, decisions: &Decisions, update: impl FnOnce(&mut Came)) {
        if let Some(ticket) = self.ticket {
            decisions.update(ticket, update);
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
            is_slow: self.is_slow,
            slowed_share: self.slowed_share,
            streamed: first.streamed,
        })
    }

    /// Returns prompt tokens: all, available, captured and delivered. `None` if the worker does not report cached
    /// tokens.
    fn hits(&self, end: &End<'_>) -> Option<[u64; 4]> {
        let usage = end.usage.filter(|usage| usage.prompt > 0)?;
        let held = |tokens: Tokens| tokens.0.min(usage.prompt);
        Some([
            usage.prompt,
            held(self.available),
            held(self.predicted_cached),
            usage.cached?,
        ])
    }

    /// Returns the prompt tokens computed although another eligible worker held them, and those computed although they
    /// were predicted to be cached here. Zero if the worker does not report cached tokens.
    fn avoidable(&self, end: &End<'_>) -> [u64; 2] {
        let Some(cached) = end.usage.and_then(|usage| usage.cached).map(Tokens) else {
            return [0; 2];
        };
        let here = self.predicted_cached.max(cached);
        let elsewhere = self.available.saturating_sub(here);
        let mistaken = self.predicted_cached.saturating_sub(cached);
        [elsewhere.0, mistaken.0]
    }
}

/// Returns the cost model by which a worker is judged that is not known to be slow: the measured or configured one if
/// known, else the learned one. The learned model of a worker that becomes slow would hide that.
fn fitted(worker: &Worker, learned: &PrefillCost) -> PrefillCost {
    if worker.spec.cost_is_known {
        worker.spec.cost
    } else {
        *learned
    }
}

#[cfg(test)]
mod tests;
