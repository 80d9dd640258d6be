//! The admin port answers everything that it is asked.

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let failed: Vec<String> = facts
        .unread
        .iter()
        .map(|(path, why)| format!("{path}: {why}"))
        .collect();
    if failed.is_empty() {
        return CheckVerdict::ok("it answers");
    }
    CheckVerdict::problem(
        format!(
            "not all of it answers, and what follows judges without it: {}",
            failed.join("; ")
        ),
        "see the router's log and its CPU; if it hangs, restart it and report its log",
    )
}
