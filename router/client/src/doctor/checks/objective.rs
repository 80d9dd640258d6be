//! The objective can be met on the worker: the median prompt alone, and with the present wait. Only turns that have
//! ended count: of those that run, it is not known whether they are late.

use policy::cost::PrefillCost;
use policy::stats::upper_median;
use policy::units::Tokens;

use super::super::facts::{DecisionFacts, Facts, WorkerFacts};
use super::super::verdict::{CheckVerdict, counted};

/// Least number of turns for a median.
const TURNS: usize = 20;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let turns = &facts.turns;
    if let Some(verdict) = overdue(facts, worker) {
        return verdict;
    }
    if turns.len() < TURNS {
        return CheckVerdict::unknown(
            format!(
                "{} answered so far, and {TURNS} show the usual prompt",
                counted(turns.len(), "turn")
            ),
            "run doctor again under load",
        );
    }
    if worker.cost_source.as_deref() == Some("default") {
        return CheckVerdict::unknown("its speed is not known", "see its cost");
    }
    let median = |of: fn(&DecisionFacts) -> f64| upper_median(turns.iter().map(of)).unwrap_or(0.0);
    let uncached = median(|turn| turn.uncached_tokens as f64) as u64;
    let cached = median(|turn| turn.cached_tokens as f64) as u64;
    let objective = median(|turn| turn.objective_ms);
    let cost = PrefillCost {
        alpha_ms_per_token: worker.cost.alpha_ms_per_token,
        beta_ms: worker.cost.beta_ms,
        gamma_ms_per_token2: worker.cost.gamma_ms_per_token2,
        floor_ms: worker.cost.floor_ms,
    };
    let ttft = cost.prefill(Tokens(uncached), Tokens(cached)).0 + worker.cost.overhead_ms;
    let found = format!(
        "a usual prompt ({uncached} new tokens) takes {ttft:.0} ms of the objective of {objective:.0} ms"
    );
    if ttft > objective {
        return CheckVerdict::problem(
            format!("{found}, even without a wait"),
            "relax objective.ttft_ms (or the class), send less new text per turn, or use faster workers",
        );
    }
    if ttft + worker.wait_ms > objective {
        return CheckVerdict::warning(
            format!(
                "{found}, and {:.0} ms of wait come before it at present",
                worker.wait_ms
            ),
            "add workers, relax the objective, or set admission.shed (docs/admission.md)",
        );
    }
    CheckVerdict::ok(found)
}

/// Reports a worker whose present wait exceeds the objective by itself: a problem if most of its turns were late too.
fn overdue(facts: &Facts, worker: &WorkerFacts) -> Option<CheckVerdict> {
    let of_turns = facts.turns.iter().map(|turn| turn.objective_ms);
    let objective = upper_median(of_turns).or(facts.objective_ms)?;
    if !worker.is_up() || worker.wait_ms <= objective {
        return None;
    }
    let own = facts.turns.iter().filter(|turn| turn.worker == worker.name);
    let (late, all) = own.fold((0, 0), |(late, all), turn| {
        (late + usize::from(turn.is_late), all + 1)
    });
    let action = "add workers, relax the objective, or set admission.shed (docs/admission.md)";
    let wait = format!(
        "{:.0} ms of wait come before a new turn, more than the objective of {objective:.0} ms",
        worker.wait_ms
    );
    Some(match 2 * late > all {
        true => CheckVerdict::problem(
            format!(
                "{late} of its last {} were late, and {wait}",
                counted(all, "turn")
            ),
            action,
        ),
        false => CheckVerdict::warning(wait, action),
    })
}
