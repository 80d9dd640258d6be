//! The public form of a decision: `GET /admin/v1/decisions`, and `x-tailroute-explain` in a response.

use http::HeaderValue;
use policy::route::{Costs, Decision, Overridden, Part, PolicyName, Reason, Terms};
use policy::slo::{Cause, Parts};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

use super::slot::{Came, Row, Slot};
use super::verdict;
use state::Routing;

/// Workers whose terms fit into a response header.
const IN_HEADER: usize = 8;

/// A page of decisions.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Page {
    /// Decisions, the newest first.
    pub decisions: Vec<Explained>,
    /// Value of `before` for the next page; `null` if there is none.
    pub next: Option<u64>,
    /// Largest number of decisions kept.
    pub capacity: usize,
    /// Kept turns that have not ended, whatever the filter.
    pub running: usize,
    /// Number of those turns whose first token is late or predicted to be late.
    pub running_predicted_late: usize,
}

/// One recorded decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explained {
    /// Number of the decision, as in the response header `x-tailroute-decision`.
    pub decision: u64,
    /// Id of the request, as in its header `x-request-id`.
    pub request: String,
    /// Id of the request's trace, as in exemplars; `null` if it has none.
    pub trace: Option<String>,
    /// Arrival of the complete request, in milliseconds since 1970.
    pub arrived_unix_ms: f64,
    /// Time from the arrival until the turn was sent to this worker, in milliseconds.
    pub held_ms: f64,
    /// Key of the conversation in hexadecimal; `null` for a turn without one.
    pub conversation: Option<String>,
    /// Requested model; empty if the request names none.
    pub model: String,
    /// Class of the objective.
    pub class: String,
    /// Objective for the time to first token, in milliseconds.
    pub objective_ms: f64,
    /// Tokens of the prompt, counted or estimated.
    pub prompt_tokens: u64,
    /// Largest number of prompt tokens that a ready worker, or the chosen one, was believed to hold.
    pub available_tokens: u32,
    /// Prompt tokens that the chosen worker was believed to hold. `outcome.cached_tokens` is the number that it
    /// reported.
    pub captured_tokens: u32,
    /// Policy that made the decision.
    #[schemars(with = "String")]
    pub policy: PolicyName,
    /// Overrides of the policy that applied; `null` if there were none.
    pub overridden: Option<OverriddenBy>,
    /// Rule of the policy that decided.
    #[schemars(with = "String")]
    pub reason: Reason,
    /// Reason of the choice in one sentence.
    pub verdict: String,
    /// The field of a worker's terms that its `parts` add up to: `score`, or `predicted_ttft_ms` under policies that do
    /// not minimise a cost.
    pub parts_of: &'static str,
    /// Name of the chosen worker.
    pub worker: String,
    /// Terms of each worker: the chosen one, then the others that could be chosen, the best first.
    pub terms: Vec<WorkerTerms>,
    /// Summary of the workers whose terms were not kept; `null` if all were.
    pub left_out: Option<LeftOut>,
    /// Second best worker; `null` if no other could be chosen.
    pub runner_up: Option<RunnerUp>,
    /// Outcome of the decision; `null` until the first token, or the end of an attempt without one.
    pub outcome: Option<Outcome>,
}

/// Overrides of the policy that applied to a decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OverriddenBy {
    /// Class of the objective whose override applied.
    pub class: Option<String>,
    /// Policy or weights that the request asked for, as written.
    pub request: Option<String>,
}

/// Terms of one worker.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WorkerTerms {
    pub worker: String,
    pub ready: bool,
    pub cached_tokens: u32,
    pub uncached_tokens: u32,
    #[serde(flatten)]
    pub costs: Costs<f64>,
    /// Value that the policy minimised; `null` for a worker that it would not use.
    pub score: Option<f64>,
    pub predicted_ttft_ms: f64,
    /// Parts in tenths of a millisecond, which add up to the rounded value of the field in `parts_of`. Parts that are
    /// zero on all workers are left out. Absent in a response's header.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// Summary of the workers whose terms were not kept.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeftOut {
    /// Number of workers.
    pub workers: u32,
    /// Number of workers among them that could have been chosen.
    pub ready: u32,
    /// Name of the worker among them that holds most of the prompt; `null` if none holds any.
    pub holder: Option<String>,
    /// Prompt tokens that this worker holds.
    pub holder_cached_tokens: u32,
}

/// The second best worker.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunnerUp {
    /// Name of the worker.
    pub worker: String,
    /// Score of this worker less that of the chosen one: what the choice saves by the policy's own measure.
    pub score_more: f64,
    /// Predicted time to first token on this worker, in milliseconds.
    pub predicted_ttft_ms: f64,
    /// Predicted less actual time to first token, in milliseconds: below zero, this worker might have been faster;
    /// `null` before the first token.
    pub than_actual_ms: Option<f64>,
}

/// Outcome of a decision.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// Outcome of the attempt; `answering` while it is running.
    pub state: &'static str,
    /// Time from the turn's arrival to the end of the response, in milliseconds; `null` while it is running.
    pub took_ms: Option<f64>,
    /// Time from the turn's arrival to the first token, in milliseconds; `null` if there was none.
    pub ttft_ms: Option<f64>,
    /// Time to first token less the time held in the router and the predicted time, in milliseconds.
    pub ttft_error_ms: Option<f64>,
    /// Whether the first token was within the objective; `null` before the first token, and for a response that does not
    /// stream, unless its request names the objective.
    pub met: Option<bool>,
    /// Cause of a missed objective; `null` if the objective was not missed.
    #[schemars(with = "Option<String>")]
    pub cause: Option<Cause>,
    /// Components of the time to first token, in milliseconds.
    #[schemars(with = "Option<std::collections::BTreeMap<String, f64>>")]
    pub parts: Option<Parts>,
    /// Prompt tokens, as the worker counted them; `null` if it did not.
    pub prompt_tokens: Option<u64>,
    /// Response tokens, as the worker counted them; `null` if it did not.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens found in the worker's cache, as it reported them; `null` if it did not.
    pub cached_tokens: Option<u64>,
    /// Computed prompt tokens that another worker held.
    pub avoidable_elsewhere_tokens: u64,
    /// Computed prompt tokens that were predicted to be cached on this worker.
    pub avoidable_mistaken_tokens: u64,
}

fn round(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// Returns the name of the worker that had the slot at a time.
fn name(routing: &Routing, worker: u32, then: Millis) -> String {
    let workers = routing.fleet.workers();
    let found = workers.get(worker as usize).filter(|known| known.joined <= then);
    found.map_or_else(|| format!("slot {worker}"), |known| known.name().to_owned())
}

/// Returns whether the worker of a slot was in the fleet at a time. Terms are also recorded for workers that have left.
fn was_present(routing: &Routing, worker: u32, then: Millis) -> bool {
    let workers = routing.fleet.workers();
    let left = workers.get(worker as usize).and_then(|known| known.gone_since());
    left.is_none_or(|left| left > then)
}

impl WorkerTerms {
    fn of(name: String, row: &Row, parts: Vec<Part>) -> Self {
        let ms = |value: f32| round(f64::from(value));
        Self {
            worker: name,
            ready: row.ready,
            cached_tokens: row.cached,
            uncached_tokens: row.uncached,
            costs: row.costs.map(ms),
            score: row.score.is_finite().then(|| ms(row.score)),
            predicted_ttft_ms: ms(row.predicted_ttft_ms()),
            parts,
        }
    }
}

impl Explained {
    #[must_use]
    pub fn of(routing: &Routing, slot: &Slot) -> Self {
        let rest = slot.rest;
        let chosen = slot.chosen();
        let names: Vec<String> = slot
            .rows()
            .iter()
            .map(|row| name(routing, row.worker, slot.arrived))
            .collect();
        let terms = slot.rows().iter().zip(&names).zip(verdict::tables(slot));
        Self {
            decision: slot.sequence,
            request: slot.request.text(),
            trace: slot.trace.map(|trace| trace.as_str().to_owned()),
            arrived_unix_ms: round(routing.clock.unix_ms(slot.arrived)),
            held_ms: round(slot.held.0),
            conversation: slot.conversation.map(|key| format!("{key:016x}")),
            model: slot.model.text(),
            class: slot.class.text(),
            objective_ms: slot.objective.0,
            prompt_tokens: slot.prompt.0,
            available_tokens: slot.available,
            captured_tokens: chosen.map_or(0, |row| row.cached),
            policy: slot.policy,
            overridden: OverriddenBy::of(slot),
            reason: slot.reason,
            verdict: verdict::sentence(slot, &names),
            parts_of: match verdict::is_cost(slot) {
                true => "score",
                false => "predicted_ttft_ms",
            },
            worker: names.first().cloned().unwrap_or_default(),
            terms: terms
                .filter(|((row, _), _)| was_present(routing, row.worker, slot.arrived))
                .map(|((row, name), parts)| WorkerTerms::of(name.clone(), row, parts))
                .collect(),
            left_out: (rest.workers > 0).then(|| LeftOut {
                workers: rest.workers,
                ready: rest.ready,
                holder: rest.holder.map(|(worker, _)| name(routing, worker, slot.arrived)),
                holder_cached_tokens: rest.holder.map_or(0, |(_, tokens)| tokens),
            }),
            runner_up: chosen.zip(slot.runner_up()).map(|(chosen, second)| {
                let predicted = f64::from(second.predicted_ttft_ms());
                RunnerUp {
                    worker: name(routing, second.worker, slot.arrived),
                    score_more: round(f64::from(second.score) - f64::from(chosen.score)),
                    predicted_ttft_ms: round(predicted),
                    // A prediction begins when the turn is sent.
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
            is_judged,
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
            met: ttft.filter(|_| is_judged).map(|_| !slot.is_late()),
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
        slow_worker_ms: round(parts.slow_worker_ms),
        engine_ms: round(parts.engine_ms),
        network_ms: round(parts.network_ms),
        prompt_ms: round(parts.prompt_ms),
        whole_ms: round(parts.whole_ms),
    }
}

#[derive(Serialize)]
struct InHeader<'a> {
    decision: u64,
    policy: PolicyName,
    #[serde(skip_serializing_if = "Option::is_none")]
    overridden: Option<Overridden>,
    reason: Reason,
    worker: &'a str,
    /// Number of workers in the fleet.
    workers: usize,
    terms: Vec<WorkerTerms>,
}

/// Returns the `x-tailroute-explain` header: the terms of the decision as one line of JSON, the chosen worker's first.
#[must_use]
pub fn header(routing: &Routing, decision: &Decision) -> Option<HeaderValue> {
    let now = routing.clock.now();
    let rank = |terms: &&Terms| (!terms.ready, terms.score);
    let mut others: Vec<&Terms> = decision.terms.iter().collect();
    others.retain(|terms| {
        terms.worker != decision.chosen().worker && was_present(routing, terms.worker.0, now)
    });
    let workers = others.len() + 1;
    others.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        a.0.cmp(&b.0).then_with(|| a.1.total_cmp(&b.1))
    });
    let shown = std::iter::once(decision.chosen()).chain(others).take(IN_HEADER);
    let terms: Vec<WorkerTerms> = shown
        .map(|terms| WorkerTerms::of(name(routing, terms.worker.0, now), &Row::of(terms), Vec::new()))
        .collect();
    let said = InHeader {
        decision: decision.sequence,
        policy: decision.policy,
        overridden: Some(decision.overridden).filter(|by| by.class || by.request),
        reason: decision.reason,
        worker: terms.first().map_or("", |terms| &terms.worker),
        workers,
        terms: terms.clone(),
    };
    HeaderValue::try_from(serde_json::to_string(&said).ok()?).ok()
}
