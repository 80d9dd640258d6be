//! Files generated from the sections: `make generate` writes them, and these tests fail when one is out of date.

mod chart;
mod example;

use std::path::Path;

use super::*;

/// Asserts that a file of the repository has the wanted contents, after writing it if `TAILROUTE_BLESS` is set.
fn assert_fresh(file: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == wanted, "{file} is out of date: run `make generate`");
}

#[test]
fn the_reference_is_fresh() {
    assert_fresh("docs/configuration.md", &reference());
}

#[test]
fn the_example_is_fresh() {
    assert_fresh("config/tailroute.example.toml", &example::example());
}

#[test]
fn the_charts_schema_is_fresh() {
    let file = "deploy/helm/tailroute/values.schema.json";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    assert_fresh(
        file,
        &chart::with_definitions(&std::fs::read_to_string(path).unwrap()),
    );
}
