//! The configuration file is the one in force.

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let configuration = &facts.configuration;
    if let Some(refused) = &configuration.refused {
        return CheckVerdict::problem(
            format!("the file was refused, and the configuration before it is in force: {refused}"),
            "correct it (tailroute check FILE); until then, removed keys and tokens stay valid too",
        );
    }
    if !configuration.needs_restart.is_empty() {
        return CheckVerdict::warning(
            format!(
                "changes in {} are not in force",
                configuration.needs_restart.join(", ")
            ),
            "restart the router, or hand over to a new one (docs/operating.md)",
        );
    }
    CheckVerdict::ok("the file is in force")
}
