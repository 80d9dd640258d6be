//! `policy` has no async, no clock, no I/O, no HTTP, no threads: held here against its dependencies and its source.

#![allow(
    clippy::disallowed_methods,
    reason = "the test reads the crate's own source files"
)]

use std::path::{Path, PathBuf};

/// Everything that `policy` may depend on at run time, and why it is harmless.
const DEPENDENCIES: [(&str, &str); 10] = [
    ("bytemuck", "tokens seen as bytes, without unsafe code here"),
    ("hashbrown", "the table that std's maps are made of"),
    (
        "rand",
        "seeded generators, without the operating system's entropy",
    ),
    ("rand_pcg", "a portable generator"),
    ("rapidhash", "a hash function"),
    ("rustc-hash", "a hasher"),
    ("schemars", "the schema of settings, as a value"),
    ("serde", "traits"),
    ("thiserror", "error types"),
    ("xxhash-rust", "a hash function"),
];

/// What must not appear in the source, and what to do instead.
const BANNED: [(&str, &str); 15] = [
    ("async fn", "policy does not wait"),
    (".await", "policy does not wait"),
    ("tokio", "policy has no runtime"),
    ("hyper::", "policy has no HTTP"),
    ("std::net", "policy has no sockets"),
    ("std::fs", "take bytes or lines as an argument"),
    ("std::io::", "take bytes or lines as an argument"),
    ("thread::spawn", "policy has no threads"),
    ("thread::scope", "policy has no threads"),
    ("thread::sleep", "policy does not wait"),
    ("std::process", "policy starts nothing"),
    ("time::Instant", "take `now` as an argument"),
    ("SystemTime", "take `now` as an argument"),
    ("static mut", "policy has no global state"),
    ("println!", "return values"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn it_depends_on_nothing_that_waits_reads_a_clock_or_opens_a_socket() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest
        .split("\n[dependencies]")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    for line in section.lines().filter(|line| !line.trim().is_empty()) {
        let name = line.split('=').next().unwrap().trim();
        let allowed = DEPENDENCIES.iter().any(|(allowed, _)| *allowed == name);
        assert!(
            allowed,
            "`{name}` is not among the dependencies that policy may have"
        );
    }
}

#[test]
fn its_source_names_no_clock_no_io_no_thread_and_no_runtime() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    assert!(files.len() > 10);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for (banned, instead) in BANNED {
                assert!(
                    !code.contains(banned),
                    "{}:{}: `{banned}`: {instead}",
                    file.display(),
                    number + 1
                );
            }
        }
    }
}
