//! A decision as people and programs read it: `GET /admin/v1/decisions`, and `x-tailroute-explain` on an answer.

use http::HeaderValue;
use policy::route::{Costs, Decision, Overridden, PolicyName, Reason, Terms};
use policy::slo::{Cause, Parts};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

use super::slot::{Came, Row, Slot};
use crate::app::App;

/// Workers whose terms fit into an answer's header.
const IN_HEADER: usize = 8;

/// A page of decisions.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Page {
    /// The newest first.
    pub decisions: Vec<Explained>,
    /// `before` of the next page; `null` if there is none.
    pub next: Option<u64>,
    /// Decisions that are kept at most.
    pub capacity: usize,
}

/// One decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explained {
    /// `x-tailroute-decision` of the answer.
    pub decision: u64,
    /// `x-request-id`.
    pub request: String,
    /// The trace that it belongs to, as exemplars name it.
    pub trace: Option<String>,
    /// When the turn's last byte was here, in milliseconds since 1970.
    pub arrived_unix_ms: f64,
    /// From then until it was sent to this worker.
    pub held_ms: f64,
    /// The conversation's name, hashed.
    pub conversation: Option<String>,
    /// The model asked for.
    pub model: String,
    /// The class of the objective.
    pub class: String,
    /// The time to first token that it was to meet.
    pub objective_ms: f64,
    /// Tokens of the prompt, as far as they could be told.
    pub prompt_tokens: u64,
    /// The policy that made it.
    #[schemars(with = "String")]
    pub policy: PolicyName,
    /// Whose settings it was made under, where not everybody's.
    pub overridden: Option<OverriddenBy>,
    /// The rule of it that decided.
    #[schemars(with = "String")]
    pub reason: Reason,
    /// The worker that was chosen.
    pub worker: String,
    /// Each worker's terms: the chosen one's, then those of the others that could be chosen, the best first.
    pub terms: Vec<WorkerTerms>,
    /// The workers whose terms were not kept.
    pub left_out: Option<LeftOut>,
    /// What the second best would have cost.
    pub runner_up: Option<RunnerUp>,
    /// What came of it.
    pub outcome: Option<Outcome>,
}

/// Which overrides of the policy acted on a decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OverriddenBy {
    /// That of this class.
    pub class: Option<String>,
    /// What the request asked for, as it was written.
    pub request: Option<String>,
}

/// One worker's terms.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs, reason = "as in `policy::route::Terms`")]
pub struct WorkerTerms {
    pub worker: String,
    pub ready: bool,
    pub cached_tokens: u32,
    pub uncached_tokens: u32,
    #[serde(flatten)]
    pub costs: Costs<f64>,
    /// What the policy minimised; `null` where it would not take the worker at all.
    pub score: Option<f64>,
    pub predicted_ttft_ms: f64,
}

/// The workers whose terms were not kept.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeftOut {
    /// How many.
    pub workers: u32,
    /// How many of them could have been chosen.
    pub ready: u32,
    /// The one of them that holds most of the prompt.
    pub holder: Option<String>,
    /// How much it holds.
    pub holder_cached_tokens: u32,
}

/// The worker that would have been chosen without the one that was.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunnerUp {
    /// Its name.
    pub worker: String,
    /// Its score less the chosen one's: what the choice saved, by the policy's own measure.
    pub score_more: f64,
    /// Time to first token that was predicted there.
    pub predicted_ttft_ms: f64,
    /// That, less what then happened on the chosen one: below zero, the other might have been faster.
    pub than_actual_ms: Option<f64>,
}

/// What came of a decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// How the attempt ended; `answering` as long as it has not.
    pub state: &'static str,
    /// From the turn's arrival to the end of its answer.
    pub took_ms: Option<f64>,
    /// To its first token.
    pub ttft_ms: Option<f64>,
    /// That, less the time that the router held it and what was predicted from then on.
    pub ttft_error_ms: Option<f64>,
    /// Whether it met its objective.
    pub met: Option<bool>,
    /// Why not.
    #[schemars(with = "Option<String>")]
    pub cause: Option<Cause>,
    /// Where the time to first token went.
    #[schemars(with = "Option<std::collections::BTreeMap<String, f64>>")]
    pub parts: Option<Parts>,
    /// Tokens of the prompt, as the worker counted them.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt found in the worker's cache.
    pub cached_tokens: Option<u64>,
    /// Tokens computed that a worker which was passed over held.
    pub avoidable_elsewhere_tokens: u64,
    /// Tokens computed that were predicted to be here.
    pub avoidable_mistaken_tokens: u64,
}

fn round(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// Who held the slot then.
fn name(app: &App, worker: u32, then: Millis) -> String {
    let workers = app.fleet.workers();
    let found = workers.get(worker as usize).filter(|known| known.joined <= then);
    found.map_or_else(|| format!("slot {worker}"), |known| known.name().to_owned())
}

impl WorkerTerms {
    fn of(name: String, row: &Row) -> Self {
        let ms = |value: f32| round(f64::from(value));
        Self {
            worker: name,
            ready: row.ready,
            cached_tokens: row.cached,
            uncached_tokens: row.uncached,
            costs: row.costs.map(ms),
            score: row.score.is_finite().then(|| ms(row.score)),
            predicted_ttft_ms: ms(row.predicted_ttft_ms()),
        }
    }
}

impl Explained {
    /// A decision in words and numbers.
    #[must_use]
    pub fn of(app: &App, slot: &Slot) -> Self {
        let rest = slot.rest;
        let chosen = slot.chosen();
        Self {
            decision: slot.sequence,
            request: slot.request.text(),
            trace: slot.trace.map(|trace| trace.as_str().to_owned()),
            arrived_unix_ms: round(app.clock.unix_ms(slot.arrived)),
            held_ms: round(slot.held.0),
            conversation: slot.conversation.map(|key| format!("{key:016x}")),
            model: slot.model.text(),
            class: slot.class.text(),
            objective_ms: slot.objective.0,
            prompt_tokens: slot.prompt.0,
            policy: slot.policy,
            overridden: OverriddenBy::of(slot),
            reason: slot.reason,
            worker: chosen.map_or_else(String::new, |row| name(app, row.worker, slot.arrived)),
            terms: slot
                .rows()
                .iter()
                .map(|row| WorkerTerms::of(name(app, row.worker, slot.arrived), row))
                .collect(),
            left_out: (rest.workers > 0).then(|| LeftOut {
                workers: rest.workers,
                ready: rest.ready,
                holder: rest.holder.map(|(worker, _)| name(app, worker, slot.arrived)),
                holder_cached_tokens: rest.holder.map_or(0, |(_, tokens)| tokens),
            }),
            runner_up: chosen.zip(slot.runner_up()).map(|(chosen, second)| {
                let predicted = f64::from(second.predicted_ttft_ms());
                RunnerUp {
                    worker: name(app, second.worker, slot.arrived),
                    score_more: round(f64::from(second.score) - f64::from(chosen.score)),
                    predicted_ttft_ms: round(predicted),
                    // What is predicted begins when the turn is sent.
                    than_actual_ms: slot.came.ttft.map(|ttft| round(slot.held.0 + predicted - ttft.0)),
                }
            }),
            outcome: Outcome::of(slot),
        }
    }
}

impl OverriddenBy {
    fn of(slot: &Slot) -> Option<Self> {
        let Overridden { class, request } = slot.overridden;
        (class || request).then(|| Self {
            class: class.then(|| slot.class.text()),
            request: request.then(|| slot.asked.text()),
        })
    }
}

impl Outcome {
    fn of(slot: &Slot) -> Option<Self> {
        let Came {
            outcome,
            took,
            ttft,
            counted,
            cached,
            parts,
            cause,
            avoidable: [elsewhere, mistaken],
        } = slot.came;
        if outcome.is_none() && ttft.is_none() {
            return None;
        }
        let predicted = slot
            .chosen()
            .map_or(0.0, |row| f64::from(row.predicted_ttft_ms()));
        Some(Self {
            state: outcome.unwrap_or("answering"),
            took_ms: outcome.map(|_| round(took.0)),
            ttft_ms: ttft.map(|ttft| round(ttft.0)),
            ttft_error_ms: ttft.map(|ttft| round(ttft.0 - slot.held.0 - predicted)),
            met: ttft.map(|_| !slot.is_late()),
            cause,
            parts: parts.map(rounded),
            prompt_tokens: counted.map(|[prompt, _]| prompt),
            completion_tokens: counted.map(|[_, completion]| completion),
            cached_tokens: cached,
            avoidable_elsewhere_tokens: elsewhere,
            avoidable_mistaken_tokens: mistaken,
        })
    }
}

fn rounded(parts: Parts) -> Parts {
    Parts {
        queue_ms: round(parts.queue_ms),
        miss_ms: round(parts.miss_ms),
        engine_ms: round(parts.engine_ms),
        network_ms: round(parts.network_ms),
        prompt_ms: round(parts.prompt_ms),
        whole_ms: round(parts.whole_ms),
    }
}

/// What an answer's header says.
#[derive(Serialize)]
struct InHeader<'a> {
    decision: u64,
    policy: PolicyName,
    #[serde(skip_serializing_if = "Option::is_none")]
    overridden: Option<Overridden>,
    reason: Reason,
    worker: &'a str,
    /// How many workers there are.
    workers: usize,
    terms: Vec<WorkerTerms>,
}

/// `x-tailroute-explain` of an answer: the terms of the choice in one line of JSON, the chosen worker's first.
#[must_use]
pub fn header(app: &App, decision: &Decision) -> Option<HeaderValue> {
    let now = app.clock.now();
    let rank = |terms: &&Terms| (!terms.ready, terms.score);
    let mut others: Vec<&Terms> = decision.terms.iter().collect();
    others.retain(|terms| terms.worker != decision.chosen().worker);
    others.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        a.0.cmp(&b.0).then_with(|| a.1.total_cmp(&b.1))
    });
    let shown = std::iter::once(decision.chosen()).chain(others).take(IN_HEADER);
    let terms: Vec<WorkerTerms> = shown
        .map(|terms| WorkerTerms::of(name(app, terms.worker.0, now), &Row::of(terms)))
        .collect();
    let said = InHeader {
        decision: decision.sequence,
        policy: decision.policy,
        overridden: Some(decision.overridden).filter(|by| by.class || by.request),
        reason: decision.reason,
        worker: terms.first().map_or("", |terms| &terms.worker),
        workers: decision.terms.len(),
        terms: terms.clone(),
    };
    HeaderValue::try_from(serde_json::to_string(&said).ok()?).ok()
}
