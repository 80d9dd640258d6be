//! The reason of a choice in one sentence, and each worker's score as parts that add up to it. The sentence names the
//! part with the largest extra cost of the runner-up.

use policy::route::{Part, Reason, split};
use policy::text::{counted, ms};

use super::slot::{Row, Slot};

/// Number of parts of a predicted time to first token, which come first.
const PREDICTED: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    name: &'a str,
    row: &'a Row,
}

/// Splits a worker's score, or its predicted time to first token if the policy does not minimise a cost. The wait is
/// what the other parts leave of the score, because the policy may weight it.
fn parts(row: &Row, is_cost: bool) -> [Part; 9] {
    let mut parts = split(&row.costs.map(f64::from), 1.0);
    let score = f64::from(row.score);
    if !is_cost {
        parts[PREDICTED..].iter_mut().for_each(|part| part.ms = 0.0);
    } else if score.is_finite() {
        parts[0].ms = score - parts[1..].iter().map(|part| part.ms).sum::<f64>();
    }
    parts
}

/// Returns whether scores are costs in milliseconds, which the parts add up to.
pub(super) fn is_cost(slot: &Slot) -> bool {
    slot.reason == Reason::LeastCost
}

/// Splits the score of each kept worker into parts in tenths of a millisecond that add up to the score in tenths. Parts
/// that are zero on all workers are left out.
pub(super) fn tables(slot: &Slot) -> Vec<Vec<Part>> {
    let is_cost = is_cost(slot);
    let mut tables: Vec<Vec<Part>> = slot
        .rows()
        .iter()
        .map(|row| tenths(parts(row, is_cost)).to_vec())
        .collect();
    let names: Vec<&str> = tables
        .iter()
        .flatten()
        .filter(|part| part.ms != 0.0)
        .map(|part| part.name)
        .collect();
    for table in &mut tables {
        table.retain(|part| names.contains(&part.name));
    }
    tables
}

/// Rounds the parts to tenths that add up to the rounded sum. The largest part takes the difference.
fn tenths(mut parts: [Part; 9]) -> [Part; 9] {
    let round = |value: f64| (value * 10.0).round();
    let sum = round(parts.iter().map(|part| part.ms).sum());
    let largest = (0..parts.len()).max_by(|one, two| parts[*one].ms.abs().total_cmp(&parts[*two].ms.abs()));
    let rounded: f64 = parts.iter().map(|part| round(part.ms)).sum();
    for (at, part) in parts.iter_mut().enumerate() {
        let rest = if Some(at) == largest { sum - rounded } else { 0.0 };
        // Adding zero turns a negative zero into a positive one.
        part.ms = (round(part.ms) + rest) / 10.0 + 0.0;
    }
    parts
}

pub(super) fn sentence(slot: &Slot, names: &[String]) -> String {
    let candidate = |at: usize| {
        let (name, row) = (names.get(at)?, slot.rows().get(at)?);
        Some(Candidate { name, row })
    };
    let Some(chosen) = candidate(0) else {
        return String::new();
    };
    let second = candidate(1).filter(|_| slot.runner_up().is_some());
    let predicted = ms(chosen.row.predicted_ttft_ms().into());
    let rule = match is_cost(slot) {
        true => String::new(),
        false => format!(" {} ({})", meaning(slot.reason), slot.policy),
    };
    let start = format!("{} chosen{rule}: {predicted} predicted", chosen.name);
    let Some(second) = second else {
        return format!("{start}; no other worker could be chosen.");
    };
    let (compared, link) = compared(chosen, second);
    let end = deciding(chosen, second).filter(|_| is_cost(slot));
    let end = end.map_or(String::new(), |why| format!("{link} {why}"));
    format!("{start}, {compared}{end}.")
}

/// Compares the predictions. Returns the comparison, and the conjunction that leads to its reason.
fn compared(chosen: Candidate<'_>, second: Candidate<'_>) -> (String, &'static str) {
    let gap = f64::from(chosen.row.predicted_ttft_ms()) - f64::from(second.row.predicted_ttft_ms());
    if gap.abs() < 0.05 {
        (format!("the same as {}", second.name), ", because")
    } else if gap > 0.0 {
        (format!("{} behind {}", ms(gap), second.name), ", but")
    } else {
        (format!("{} ahead of {}", ms(-gap), second.name), ", because")
    }
}

fn deciding(chosen: Candidate<'_>, second: Candidate<'_>) -> Option<String> {
    let (own, other) = (parts(chosen.row, true), parts(second.row, true));
    let more = own.into_iter().zip(other).map(|(own, other)| Part {
        name: own.name,
        ms: other.ms - own.ms,
    });
    let part = more.max_by(|one, two| one.ms.total_cmp(&two.ms))?;
    if part.ms < 0.05 {
        return None;
    }
    let (there, cost) = (second.name, ms(part.ms));
    let computes = match second.row.uncached.saturating_sub(chosen.row.uncached) {
        0 => format!("the prefill on {there}"),
        more => format!("computing {} on {there}", counted(more.into(), "more token")),
    };
    Some(match part.name {
        "wait" => format!("{there} has {cost} more of work waiting"),
        "prefill" => format!("{computes} would take {cost} longer"),
        "fixed" => format!("a turn on {there} has {cost} more of fixed cost"),
        "overhead" => format!("{there} takes {cost} longer beside queue and prefill"),
        "locality" => format!("{computes} would hold up the turns behind it for {cost} longer"),
        "home" => format!("{there} is home to more conversations (home: {cost} more)"),
        "slo" => format!("{there} would miss the objective by more (slo: {cost} more)"),
        "affinity" => {
            format!(
                "the conversation's last turn went to {} (affinity: {cost})",
                chosen.name
            )
        }
        _ => format!("the random tie-break favours it by {cost}"),
    })
}

/// Describes the rule by which a policy chose, as a part of the sentence.
const fn meaning(reason: Reason) -> &'static str {
    match reason {
        Reason::LeastCost => "for the least cost",
        Reason::Rotation => "as the next in rotation",
        Reason::FewestInFlight => "for its fewest requests in flight",
        Reason::Imbalance => "because the load was out of balance",
        Reason::PrefixMatch => "for the longest prefix of the prompt",
        Reason::SmallestTree => "for its smallest tree of prefixes",
        Reason::Draw => "at random",
        Reason::Key => "by the turn's key",
        Reason::Overload => "because the preferred worker is overloaded",
    }
}

#[cfg(test)]
mod tests {
    use policy::ids::WorkerId;
    use policy::route::{Decision, Overridden, PolicyName, Terms};
    use policy::units::{Millis, Tokens};

    use super::super::NewDecision;
    use super::*;

    /// A worker's terms: cached and computed tokens, wait, prefill, κ, and home.
    fn terms(worker: u32, cached: u64, computed: u64, [wait, prefill, kappa, home]: [f64; 4]) -> Terms {
        let fixed = 3.0;
        Terms {
            ready: true,
            cached: Tokens(cached),
            uncached: Tokens(computed),
            wait_ms: wait,
            marginal_ms: prefill,
            fixed_ms: fixed,
            kappa,
            home_ms: home,
            score: wait + kappa * prefill + fixed + home,
            ..Terms::unscored(WorkerId(worker))
        }
    }

    fn slot(reason: Reason, policy: PolicyName, terms: [Terms; 2]) -> Slot {
        let decision = Decision {
            sequence: 0,
            policy,
            overridden: Overridden {
                class: false,
                request: false,
            },
            reason,
            chosen: 0,
            terms: terms.into(),
        };
        let mut slot = Slot::EMPTY;
        let made = NewDecision {
            request: b"r",
            trace: None,
            conversation: None,
            model: "m",
            class: "default",
            objective: Millis(400.0),
            arrived: Millis::ZERO,
            held: Millis::ZERO,
            prompt: Tokens(6_000),
            asked: "",
            decision: &decision,
        };
        slot.write(0, &made);
        slot
    }

    fn said(slot: &Slot) -> String {
        sentence(slot, &["gpu-0".to_owned(), "gpu-1".to_owned()])
    }

    fn tail(terms: [Terms; 2]) -> Slot {
        slot(Reason::LeastCost, PolicyName::Tail, terms)
    }

    /// Returns terms by which the chosen worker is predicted to be slower, but spares the turns behind it a prefill.
    fn behind() -> [Terms; 2] {
        [
            terms(0, 5_136, 864, [350.0, 50.0, 1.5, 12.0]),
            terms(1, 0, 6_000, [3.0, 350.0, 2.0, 14.0]),
        ]
    }

    #[test]
    fn the_sentence_names_the_part_that_decides() {
        let cold = |wait: f64, home: f64| terms(1, 0, 6_000, [wait, 300.0, 1.0, home]);
        let warm = terms(0, 5_136, 864, [0.0, 50.0, 1.0, 0.0]);
        let idle = terms(0, 0, 6_000, [0.0, 300.0, 1.0, 0.0]);
        for (terms, sentence) in [
            (
                behind(),
                "gpu-0 chosen: 403 ms predicted, 47 ms behind gpu-1, but computing 5,136 more tokens on gpu-1 would \
                 hold up the turns behind it for 325 ms longer.",
            ),
            (
                [warm, cold(0.0, 0.0)],
                "gpu-0 chosen: 53 ms predicted, 250 ms ahead of gpu-1, because computing 5,136 more tokens on gpu-1 \
                 would take 250 ms longer.",
            ),
            (
                [idle, cold(90.0, 0.0)],
                "gpu-0 chosen: 303 ms predicted, 90 ms ahead of gpu-1, because gpu-1 has 90 ms more of work waiting.",
            ),
            (
                [idle, cold(0.0, 4.0)],
                "gpu-0 chosen: 303 ms predicted, the same as gpu-1, because gpu-1 is home to more conversations \
                 (home: 4.0 ms more).",
            ),
        ] {
            assert_eq!(said(&tail(terms)), sentence);
        }
        let away = Terms {
            ready: false,
            score: f64::INFINITY,
            ..cold(0.0, 0.0)
        };
        assert_eq!(
            said(&tail([idle, away])),
            "gpu-0 chosen: 303 ms predicted; no other worker could be chosen."
        );
    }

    #[test]
    fn a_rule_without_costs_is_named_and_the_parts_add_up_to_the_prediction() {
        let [one, two] = behind();
        let next = slot(
            Reason::Rotation,
            PolicyName::RoundRobin,
            [Terms { score: 0.0, ..one }, Terms { score: 1.0, ..two }],
        );
        assert_eq!(
            said(&next),
            "gpu-0 chosen as the next in rotation (round_robin): 403 ms predicted, 47 ms behind gpu-1."
        );
        let table = &tables(&next)[0];
        let names: Vec<&str> = table.iter().map(|part| part.name).collect();
        assert_eq!(names, ["wait", "prefill", "fixed"]);
        assert_eq!(table.iter().map(|part| part.ms).sum::<f64>(), 403.0);
    }

    #[test]
    fn a_weighted_wait_and_rounded_parts_still_add_up() {
        // A load weight of 2, and parts between two tenths.
        let odd = behind().map(|terms| Terms {
            spread_ms: 0.14,
            score: terms.score + terms.wait_ms + 0.14,
            ..terms
        });
        let slot = tail(odd);
        for (row, table) in slot.rows().iter().zip(tables(&slot)) {
            let sum: f64 = table.iter().map(|part| part.ms).sum();
            let score = (f64::from(row.score) * 10.0).round() / 10.0;
            assert!((sum - score).abs() < 1e-6, "{sum} {score}");
        }
        assert_eq!(tables(&slot)[0][0].ms, 700.0, "the wait counts twice");
    }
}
