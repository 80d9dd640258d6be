//! Behaviour that an operator may rely on.

use std::collections::BTreeMap;

use super::*;

mod admin;
mod discovery;
mod example;
mod generated;
mod keys;
mod mistakes;
mod sections;
mod sources;
mod workers;

const ONE_WORKER: &str = "[[workers]]\nurl = \"http://10.0.0.1:8000\"\n";

fn load_text(text: &str) -> Result<Config, Problems> {
    load(&Sources {
        file: Some(("t.toml", text)),
        ..Sources::default()
    })
}

fn load_under(text: &str, variables: &[(&str, &str)], overrides: Overrides) -> Result<Config, Problems> {
    let environment = variables
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    load(&Sources {
        file: Some(("t.toml", text)),
        environment,
        overrides,
    })
}

fn complaints(result: Result<Config, Problems>) -> Vec<String> {
    result
        .expect_err("this must be refused")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    assert_eq!(complaints(load_text(text)), expected);
}
