//! The reason of a decision in one sentence, and its terms as a table whose columns add up.
//!
//! The sentence compares the chosen worker with the runner-up. The deciding term is the one in which the runner-up
//! costs most more.

use super::super::format::{counted, ms};
use super::super::table::{Align, Table};
use super::{Decision, Terms};

/// Names of the parts of a score, in the order of [`parts`].
const NAMES: [&str; 9] = [
    "wait", "prefill", "fixed", "overhead", "locality", "home", "slo", "affinity", "spread",
];
/// Parts of the predicted time to first token, which come first.
const PREDICTED: usize = 4;

/// Returns whether the score is a cost in milliseconds, which the parts add up to.
fn is_cost(decision: &Decision) -> bool {
    decision.reason == "least_cost"
}

/// Splits a score into parts that add up to it. The wait is the rest, because the policy may weight it.
fn parts(terms: &Terms, is_cost: bool) -> [f64; 9] {
    let mut parts = [
        terms.wait_ms,
        terms.marginal_ms,
        terms.fixed_ms,
        terms.overhead_ms,
        (terms.kappa - 1.0) * terms.marginal_ms,
        terms.home_ms,
        terms.slo_ms,
        terms.affinity_ms,
        terms.spread_ms,
    ];
    if let (true, Some(score)) = (is_cost, terms.score) {
        parts[0] = score - parts[1..].iter().sum::<f64>();
    }
    parts
}

/// Rounds the parts to tenths that add up to the rounded sum. The largest part takes the difference.
fn tenths(parts: &[f64]) -> (Vec<f64>, f64) {
    let round = |value: f64| (value * 10.0).round();
    let sum = round(parts.iter().sum());
    let mut rounded: Vec<f64> = parts.iter().map(|part| round(*part)).collect();
    let largest = (0..parts.len()).max_by(|one, other| parts[*one].abs().total_cmp(&parts[*other].abs()));
    if let Some(largest) = largest {
        rounded[largest] += sum - rounded.iter().sum::<f64>();
    }
    // Adding zero turns a negative zero into a positive one.
    let back = |value: f64| value / 10.0 + 0.0;
    (rounded.into_iter().map(back).collect(), back(sum))
}

/// Returns the sentence.
pub(super) fn sentence(decision: &Decision) -> String {
    let Some(chosen) = decision.chosen() else {
        return format!("{} chosen.", decision.worker);
    };
    let predicted = ms(chosen.predicted_ttft_ms);
    let why = match is_cost(decision) {
        true => String::new(),
        false => format!(" {} ({}):", meaning(&decision.reason), decision.policy),
    };
    let Some(second) = decision.runner_up() else {
        let why = why.trim_end_matches(':');
        return format!(
            "{} chosen{why}: {predicted} predicted; no other worker could be chosen.",
            chosen.worker
        );
    };
    let gap = chosen.predicted_ttft_ms - second.predicted_ttft_ms;
    let (compared, link) = if gap.abs() < 0.05 {
        (format!("the same as {}", second.worker), ", because")
    } else if gap > 0.0 {
        (format!("{} behind {}", ms(gap), second.worker), ", but")
    } else {
        (format!("{} ahead of {}", ms(-gap), second.worker), ", because")
    };
    let start = match why.as_str() {
        "" => format!("{} chosen:", chosen.worker),
        why => format!("{} chosen{why}", chosen.worker),
    };
    let end = match is_cost(decision) {
        true => deciding(chosen, second).map_or(String::new(), |why| format!("{link} {why}")),
        false => String::new(),
    };
    format!("{start} {predicted} predicted, {compared}{end}.")
}

/// Says in which term the runner-up costs most more than the chosen worker.
fn deciding(chosen: &Terms, second: &Terms) -> Option<String> {
    let (own, other) = (parts(chosen, true), parts(second, true));
    let more = |at: usize| other[at] - own[at];
    let at = (0..NAMES.len()).max_by(|one, two| more(*one).total_cmp(&more(*two)))?;
    let cost = more(at);
    if cost < 0.05 {
        return None;
    }
    let (there, cost) = (&second.worker, ms(cost));
    let fewer = second.uncached_tokens.saturating_sub(chosen.uncached_tokens);
    let computes = match fewer {
        0 => format!("the prefill on {there}"),
        fewer => format!("computing {} on {there}", counted(fewer, "more token")),
    };
    Some(match NAMES[at] {
        "wait" => format!("{there} has {cost} more of work waiting"),
        "prefill" => format!("{computes} would take {cost} longer"),
        "fixed" => format!("a turn on {there} has {cost} more of fixed cost"),
        "overhead" => format!("{there} takes {cost} longer beside queue and prefill"),
        "locality" => format!("{computes} would hold up the turns behind it for {cost} longer"),
        "home" => format!("{there} is home to more conversations (home: {cost} more)"),
        "slo" => format!("{there} would miss the objective by more (slo: {cost} more)"),
        "affinity" => format!(
            "the conversation's last turn went to {} (affinity: {cost})",
            chosen.worker
        ),
        _ => format!("the random tie-break favours it by {cost}"),
    })
}

/// Returns what a rule of a policy without costs looks at.
fn meaning(reason: &str) -> &str {
    match reason {
        "rotation" => "as the next in rotation",
        "fewest_in_flight" => "for its fewest requests in flight",
        "imbalance" => "because the load was out of balance",
        "prefix_match" => "for the longest prefix of the prompt",
        "smallest_tree" => "for its smallest tree of prefixes",
        "draw" => "at random",
        "key" => "by the turn's key",
        "overload" => "because the preferred worker is overloaded",
        other => other,
    }
}

/// Returns the terms of each worker. The columns after `predicted` add up to `score` where it is a cost; otherwise those
/// before `predicted` add up to it.
pub(super) fn table(decision: &Decision) -> String {
    let is_cost = is_cost(decision);
    let shown = if is_cost { NAMES.len() } else { PREDICTED };
    let rows: Vec<(&Terms, Vec<f64>, f64)> = decision
        .terms
        .iter()
        .map(|terms| {
            let (parts, sum) = tenths(&parts(terms, is_cost)[..shown]);
            (terms, parts, sum)
        })
        .collect();
    // Parts that are zero on each worker are left out.
    let columns: Vec<usize> = (0..shown)
        .filter(|at| rows.iter().any(|(_, parts, _)| parts[*at] != 0.0))
        .collect();
    let mut header = vec![
        ("worker", Align::Left),
        ("cached", Align::Right),
        ("computed", Align::Right),
    ];
    if is_cost {
        header.push(("predicted", Align::Right));
    }
    header.extend(columns.iter().map(|at| (NAMES[*at], Align::Right)));
    if !is_cost {
        header.push(("= predicted", Align::Right));
    }
    header.push((if is_cost { "= score" } else { "score" }, Align::Right));
    let mut table = Table::new(&header);
    for (terms, parts, sum) in rows {
        let mut cells = vec![
            terms.worker.clone(),
            terms.cached_tokens.to_string(),
            terms.uncached_tokens.to_string(),
        ];
        if is_cost {
            cells.push(format!("{:.1}", terms.predicted_ttft_ms));
        }
        cells.extend(columns.iter().map(|at| format!("{:.1}", parts[*at])));
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
