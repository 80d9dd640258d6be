use std::fmt::Write as _;

use super::super::format::{count, counted, ms, time};
use super::super::table::{Align, TextTable};
use super::{CandidateTerms, Decision, DecisionOutcome, SecondBest};

/// Formats the decisions of a request, one for each attempted worker, the first attempt first.
pub(super) fn text(decisions: &[Decision]) -> String {
    let attempts = decisions.len();
    let mut out = String::new();
    for (at, decision) in decisions.iter().rev().enumerate() {
        if at > 0 {
            out.push_str("\n\n");
        }
        if attempts > 1 {
            let _ = writeln!(out, "Attempt {} of {attempts}", at + 1);
        }
        out.push_str(&one(decision));
    }
    out
}

fn one(decision: &Decision) -> String {
    let mut out = match decision.verdict.as_str() {
        "" => format!("{} chosen.", decision.worker),
        verdict => verdict.to_owned(),
    };
    let _ = write!(out, "\n{}\n\n{}", came(decision), table(decision));
    if let Some(left) = &decision.left_out {
        let _ = write!(
            out,
            "\n{} further {}, {} of them ready",
            count(left.workers),
            if left.workers == 1 { "worker" } else { "workers" },
            count(left.ready)
        );
        if let Some(holder) = &left.holder {
            let held = counted(left.holder_cached_tokens, "token");
            let _ = write!(out, "; {holder} held {held} of the prompt");
        }
    }
    if let Some(parts) = split(decision.outcome.as_ref()) {
        let _ = write!(out, "\n\nfirst token: {parts}");
    }
    let _ = write!(out, "\n\n{}", facts(decision));
    out
}

/// Returns the terms of each worker. The columns after `predicted` add up to `score` where it is a cost; otherwise those
/// before `predicted` add up to it.
fn table(decision: &Decision) -> String {
    let is_cost = decision.parts_of == "score";
    let parts = decision.chosen().map_or(&[][..], |chosen| &chosen.parts);
    let mut header = vec![
        ("worker", Align::Left),
        ("cached", Align::Right),
        ("computed", Align::Right),
    ];
    if is_cost {
        header.push(("predicted", Align::Right));
    }
    header.extend(parts.iter().map(|part| (part.name.as_str(), Align::Right)));
    if !is_cost {
        header.push(("= predicted", Align::Right));
    }
    header.push((if is_cost { "= score" } else { "score" }, Align::Right));
    let mut table = TextTable::new(&header);
    for terms in &decision.terms {
        let sum: f64 = terms.parts.iter().map(|part| part.ms).sum();
        let mut cells = vec![
            terms.worker.clone(),
            terms.cached_tokens.to_string(),
            terms.uncached_tokens.to_string(),
        ];
        if is_cost {
            cells.push(format!("{:.1}", terms.predicted_ttft_ms));
        }
        cells.extend(terms.parts.iter().map(|part| format!("{:.1}", part.ms)));
        if !is_cost {
            cells.push(format!("{sum:.1}"));
        }
        cells.push(match (terms.ready, terms.score) {
            (false, _) => "not ready".to_owned(),
            (true, None) => "-".to_owned(),
            (true, Some(_)) if is_cost => format!("{sum:.1}"),
            (true, Some(score)) => format!("{score:.3}"),
        });
        table.row(cells);
    }
    table.text()
}

/// Says when the first token came, against the objective and the prediction.
fn came(decision: &Decision) -> String {
    let Some(outcome) = &decision.outcome else {
        return "It has no first token yet.".to_owned();
    };
    let Some(ttft) = outcome.ttft_ms else {
        return format!("It ended without a first token: {}.", outcome.state);
    };
    let objective = ms(decision.objective_ms);
    let late = ttft - decision.objective_ms;
    let mut out = format!("First token after {}", ms(ttft));
    match (outcome.met, &outcome.cause) {
        (Some(false), Some(cause)) => {
            let _ = write!(
                out,
                ", {} late for the objective of {objective} (cause: {cause})",
                ms(late)
            );
        }
        (Some(false), None) => drop(write!(
            out,
            ", {} late for the objective of {objective}",
            ms(late)
        )),
        _ => drop(write!(out, ", within the objective of {objective}")),
    }
    if let Some(error) = outcome.ttft_error_ms {
        let than = if error < 0.0 { "earlier" } else { "later" };
        let _ = write!(out, ", {} {than} than predicted", ms(error.abs()));
    }
    out.push('.');
    if let (Some(chosen), Some(second)) = (decision.chosen(), &decision.runner_up) {
        let _ = write!(out, "\n{}", predicted(chosen, second));
    }
    out
}

/// Compares the predictions of the chosen worker and the runner-up, which both were made before the turn was sent.
fn predicted(chosen: &CandidateTerms, second: &SecondBest) -> String {
    let (own, other) = (chosen.predicted_ttft_ms, second.predicted_ttft_ms);
    let name = &second.worker;
    match other - own {
        less if less <= -0.05 => format!(
            "Predicted: {}, and {} on {name}, {} sooner.",
            ms(own),
            ms(other),
            ms(-less)
        ),
        more => format!(
            "Predicted: {}, and {} on {name}, {} later.",
            ms(own),
            ms(other),
            ms(more.max(0.0))
        ),
    }
}

/// Formats the parts of the time to first token that are not zero.
fn split(outcome: Option<&DecisionOutcome>) -> Option<String> {
    let outcome = outcome?;
    let named = |(name, value): (&String, &serde_json::Value)| {
        let part = value.as_f64().filter(|part| *part >= 0.05)?;
        Some(format!("{} {}", name.trim_end_matches("_ms"), ms(part)))
    };
    let parts: Vec<String> = outcome.parts.as_ref()?.iter().filter_map(named).collect();
    (!parts.is_empty()).then(|| format!("{} = {}", parts.join(" + "), ms(outcome.ttft_ms.unwrap_or(0.0))))
}

fn facts(decision: &Decision) -> String {
    let mut facts = vec![
        ("request", decision.request.clone()),
        ("trace", decision.trace.clone().unwrap_or_default()),
        ("decision", decision.decision.to_string()),
        ("arrived", time(&decision.arrived_unix_ms.into())),
        ("held in the router", ms(decision.held_ms)),
        ("model", decision.model.clone()),
        ("class", decision.class.clone()),
        ("policy", format!("{} ({})", decision.policy, decision.reason)),
        ("prompt", counted(decision.prompt_tokens, "token")),
    ];
    for (stage, tokens) in [
        ("available", decision.available_tokens),
        ("captured", decision.captured_tokens),
    ] {
        facts.extend(tokens.map(|tokens| (stage, counted(tokens, "token"))));
    }
    if let Some(outcome) = &decision.outcome {
        let took = outcome
            .took_ms
            .map_or(String::new(), |took| format!(" after {}", ms(took)));
        facts.push(("state", format!("{}{took}", outcome.state)));
        if let (Some(cached), Some(prompt)) = (outcome.cached_tokens, outcome.prompt_tokens) {
            facts.push((
                "delivered",
                format!("{} of {}", count(cached), counted(prompt, "token")),
            ));
        }
    }
    facts.retain(|(_, value)| !value.is_empty());
    let lines: Vec<String> = facts
        .iter()
        .map(|(name, value)| format!("{name:<18}  {value}"))
        .collect();
    lines.join("\n")
}
