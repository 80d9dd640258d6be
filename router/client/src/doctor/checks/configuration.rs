//! The configuration file is the one in force.

use super::super::facts::Facts;
use super::super::verdict::Verdict;

pub(in super::super) fn check(facts: &Facts) -> Verdict {
    let configuration = &facts.configuration;
    if let Some(refused) = &configuration.refused {
        return Verdict::problem(
            format!("the file was refused, and the configuration before it is in force: {refused}"),
            "correct it (tailroute check FILE); until then, removed keys and tokens stay valid too",
        );
    }
    if !configuration.needs_restart.is_empty() {
        return Verdict::warning(
            format!(
                "changes in {} are not in force",
                configuration.needs_restart.join(", ")
            ),
            "restart the router, or hand over to a new one (docs/operating.md)",
        );
    }
    Verdict::ok("the file is in force")
}
