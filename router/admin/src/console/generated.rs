//! Checks that the console's table of policies and weights is up to date. `make generate` writes it.

use std::fmt::Write as _;

use policy::route::{PolicyName, WeightName};

fn quoted(text: &str) -> String {
    format!(
        "'{}'",
        text.replace('\\', "\\\\").replace('\'', "’").replace('\n', " ")
    )
}

fn tables() -> String {
    let mut page = "\
// What policies and weights there are, and what they do. Generated from policy/src/route by `make generate`.

export const POLICIES = [
"
    .to_owned();
    for policy in PolicyName::ALL {
        let (name, meaning) = (quoted(policy.as_str()), quoted(policy.meaning()));
        let _ = writeln!(page, "  {{ name: {name}, meaning: {meaning} }},");
    }
    page.push_str("];\n\nexport const WEIGHTS = [\n");
    for weight in WeightName::ALL {
        let spec = weight.spec();
        let (path, name) = (quoted(&format!("weights.{}", spec.name)), quoted(spec.label));
        let meaning = quoted(format!("{} {}", spec.help, spec.effect).trim_end());
        let unit = match spec.unit {
            "" => String::new(),
            unit => format!(" unit: {},", quoted(unit)),
        };
        let _ = writeln!(
            page,
            "  {{ path: {path}, name: {name},{unit} meaning: {meaning} }},"
        );
    }
    page.push_str("];\n");
    page
}

#[test]
fn the_consoles_tables_are_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/console/pages/tables.js");
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(path, tables()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == tables(),
        "router/admin/console/pages/tables.js is out of date: run `make generate`"
    );
}
