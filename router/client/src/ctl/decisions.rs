//! `tailroute ctl decisions`, `explain` and `trace`.

mod explain;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answer::CommandOutput;
use super::client::{Client, escaped};
use super::format::{counted, ms, time};
use super::table::{Align, TextTable};

const DECISIONS: &str = "/admin/v1/decisions";

/// Filters on decisions. Absent ones match all.
#[derive(Debug, clap::Args)]
pub(super) struct Filters {
    /// Only turns that missed their latency objective; with `=false`, only the others.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    late: Option<bool>,
    /// Also turns that have not ended.
    #[arg(long)]
    running: bool,
    /// Only turns that missed their objective for this reason.
    #[arg(long, value_parser = ["queue", "miss", "slow_worker", "engine", "network", "prompt", "whole"])]
    cause: Option<String>,
    /// Only decisions that chose this worker.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only turns with an objective of this class.
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Only decisions of this trace.
    #[arg(long, value_name = "ID")]
    trace: Option<String>,
    /// Only the decision of this number, from the `x-tailroute-decision` header of its response.
    #[arg(long, value_name = "NUMBER")]
    decision: Option<u64>,
    /// Only decisions older than the previous page, which prints this number.
    #[arg(long, value_name = "POSITION")]
    before: Option<u64>,
    /// Maximum number of decisions.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

impl Filters {
    fn query(&self) -> String {
        let text = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{name}={}", escaped(value)))
        };
        let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name}={value}"));
        let parts = [
            Some(format!("limit={}", self.limit)),
            self.late.map(|late| format!("late={late}")),
            (!self.running).then(|| "finished=true".to_owned()),
            text("cause", &self.cause),
            text("worker", &self.worker),
            text("class", &self.class),
            text("trace", &self.trace),
            number("decision", self.decision),
            number("before", self.before),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("&")
    }
}

/// A page of decisions. Fields that a router of another version leaves out have their defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DecisionsPage {
    decisions: Vec<Decision>,
    next: Option<u64>,
    capacity: u64,
    running: u64,
    running_predicted_late: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Decision {
    decision: u64,
    request: String,
    trace: Option<String>,
    arrived_unix_ms: f64,
    held_ms: f64,
    model: String,
    class: String,
    objective_ms: f64,
    prompt_tokens: u64,
    available_tokens: Option<u64>,
    captured_tokens: Option<u64>,
    policy: String,
    reason: String,
    verdict: String,
    parts_of: String,
    worker: String,
    terms: Vec<CandidateTerms>,
    left_out: Option<OmittedWorkers>,
    runner_up: Option<SecondBest>,
    outcome: Option<DecisionOutcome>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CandidateTerms {
    worker: String,
    ready: bool,
    cached_tokens: u64,
    uncached_tokens: u64,
    score: Option<f64>,
    predicted_ttft_ms: f64,
    parts: Vec<ScorePart>,
}

/// A part of a score or of a prediction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScorePart {
    name: String,
    ms: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OmittedWorkers {
    workers: u64,
    ready: u64,
    holder: Option<String>,
    holder_cached_tokens: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SecondBest {
    worker: String,
    score_more: f64,
    predicted_ttft_ms: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DecisionOutcome {
    state: String,
    took_ms: Option<f64>,
    ttft_ms: Option<f64>,
    ttft_error_ms: Option<f64>,
    met: Option<bool>,
    cause: Option<String>,
    parts: Option<Map<String, Value>>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

impl Decision {
    fn is_late(&self) -> bool {
        self.outcome
            .as_ref()
            .is_some_and(|outcome| outcome.met == Some(false))
    }

    fn chosen(&self) -> Option<&CandidateTerms> {
        self.terms.first()
    }
}

pub(super) async fn list(client: &Client, filters: &Filters) -> anyhow::Result<CommandOutput> {
    let json = client.get(&format!("{DECISIONS}?{}", filters.query())).await?;
    Ok(CommandOutput::parsed(json, |page| listed(&page)))
}

pub(super) async fn trace(client: &Client, id: &str) -> anyhow::Result<CommandOutput> {
    let path = format!("{DECISIONS}?limit=200&trace={}", escaped(id));
    let json = client.get(&path).await?;
    Ok(CommandOutput::parsed(json, |page| listed(&page)))
}

/// Explains the decisions of a request, which may be named by the beginning of its id.
pub(super) async fn explain(client: &Client, request: &str) -> anyhow::Result<CommandOutput> {
    let json = client.get(&format!("{DECISIONS}/{}", escaped(request))).await?;
    Ok(CommandOutput::parsed(json, |page: DecisionsPage| {
        explain::text(&page.decisions)
    }))
}

/// Formats a page: how many turns were late and why, and a row for each decision.
fn listed(page: &DecisionsPage) -> String {
    if page.decisions.is_empty() {
        return match page.capacity {
            0 => "The router keeps no decisions (explain.max_bytes).".to_owned(),
            most => format!(
                "No decision matches{}. The router keeps the last {} (explain.max_bytes).",
                running(page),
                counted(most, "decision")
            ),
        };
    }
    let right = Align::Right;
    let mut table = TextTable::new(&[
        ("arrived", Align::Left),
        ("decision", right),
        ("worker", Align::Left),
        ("predicted", right),
        ("first token", right),
        ("objective", right),
        ("outcome", Align::Left),
        ("ahead by", right),
        ("request", Align::Left),
    ]);
    for decision in &page.decisions {
        let outcome = decision.outcome.as_ref();
        let ahead = decision.runner_up.as_ref().map(|second| second.score_more);
        table.row([
            time(&decision.arrived_unix_ms.into()),
            decision.decision.to_string(),
            decision.worker.clone(),
            decision
                .chosen()
                .map_or("-".to_owned(), |terms| ms(terms.predicted_ttft_ms)),
            outcome
                .and_then(|outcome| outcome.ttft_ms)
                .map_or("-".to_owned(), ms),
            ms(decision.objective_ms),
            outcome.map_or("running".to_owned(), ended),
            ahead.map_or("-".to_owned(), |score| format!("{score:.1}")),
            decision.request.clone(),
        ]);
    }
    let older = page
        .next
        .map_or(String::new(), |next| format!("\n\nolder ones: --before {next}"));
    let summary = summary(&page.decisions);
    format!("{summary}{}.\n\n{}{older}", running(page), table.text())
}

/// Names the turns that have not ended: `; 20 running, 18 of them predicted late`.
fn running(page: &DecisionsPage) -> String {
    match (page.running, page.running_predicted_late) {
        (0, _) => String::new(),
        (turns, 0) => format!("; {turns} running"),
        (turns, late) => format!("; {turns} running, {late} of them predicted late"),
    }
}

fn ended(outcome: &DecisionOutcome) -> String {
    match (&outcome.met, &outcome.cause) {
        (Some(false), Some(cause)) => format!("late: {cause}"),
        (Some(false), None) => "late".to_owned(),
        _ => outcome.state.clone(),
    }
}

/// Counts late turns by their cause: `3 decisions, 2 late: 1 engine, 1 queue`.
fn summary(decisions: &[Decision]) -> String {
    let all = counted(decisions.len() as u64, "decision");
    let late: Vec<&Decision> = decisions.iter().filter(|decision| decision.is_late()).collect();
    if late.is_empty() {
        return format!("{all}, none late");
    }
    let mut causes: Vec<(&str, usize)> = Vec::new();
    for decision in &late {
        let cause = decision
            .outcome
            .as_ref()
            .and_then(|outcome| outcome.cause.as_deref());
        let cause = cause.unwrap_or("running");
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, number)) => *number += 1,
            None => causes.push((cause, 1)),
        }
    }
    causes.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let causes: Vec<String> = causes
        .iter()
        .map(|(cause, number)| format!("{number} {cause}"))
        .collect();
    format!("{all}, {} late: {}", late.len(), causes.join(", "))
}

#[cfg(test)]
mod tests;
