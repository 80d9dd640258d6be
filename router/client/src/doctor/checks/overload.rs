//! Overload of the fleet.

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let Some(overload) = &facts.overload else {
        return CheckVerdict::ok("the fleet is not overloaded");
    };
    let action = if overload.refused > 0 {
        "add workers; clients that are refused should send less or retry later"
    } else {
        "add workers, or set admission.shed so that requests which cannot meet the objective are refused at once"
    };
    CheckVerdict::problem(
        format!(
            "the fleet is overloaded: the wait alone exceeds the objective of {:.0} ms on {} of {} ready workers (the \
             median wait is {:.0} ms); since it began {} turns were late and {} requests were refused",
            overload.objective_ms,
            overload.workers_over,
            overload.workers_ready,
            overload.wait_ms,
            overload.late,
            overload.refused,
        ),
        action,
    )
}
