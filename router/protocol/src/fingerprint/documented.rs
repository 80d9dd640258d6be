//! Tests of the examples in `docs/fingerprints.md`.

use std::collections::HashSet;

use crate::api::Endpoint;
use crate::parse::parse;

const PAGE: &str = include_str!("../../../../docs/fingerprints.md");

/// Returns the bodies of each block of this kind.
fn blocks(kind: &str) -> Vec<Vec<&'static str>> {
    PAGE.split("```json ")
        .filter_map(|block| block.strip_prefix(kind)?.split("```").next())
        .map(|lines| lines.trim().lines().collect())
        .collect()
}

/// Fingerprints a line: a chat's body, or a completion's after its path.
fn fingerprint(body: &str) -> (Vec<policy::ids::PrefixHash>, Vec<u64>) {
    let (endpoint, body) = match body.strip_prefix("/v1/completions ") {
        Some(body) => (Endpoint::Completions, body),
        None => (Endpoint::Chat, body),
    };
    let chain = parse(endpoint, body.as_bytes()).unwrap().fingerprint.chain;
    assert!(!chain.is_empty(), "{body}");
    (chain.hashes().to_vec(), chain.ends().to_vec())
}

#[test]
fn documented_bodies_that_are_the_same_have_one_fingerprint() {
    let blocks = blocks("same\n");
    assert!(blocks.len() > 5);
    for bodies in blocks {
        for body in &bodies[1..] {
            assert_eq!(fingerprint(body), fingerprint(bodies[0]), "{body}");
        }
    }
}

#[test]
fn documented_bodies_that_are_different_share_no_last_key() {
    let blocks = blocks("different\n");
    assert!(blocks.len() > 5);
    for bodies in blocks {
        let keys: HashSet<_> = bodies
            .iter()
            .map(|body| fingerprint(body).0.last().copied())
            .collect();
        assert_eq!(keys.len(), bodies.len(), "{bodies:?}");
    }
}

#[test]
fn documented_batches_have_no_fingerprint() {
    assert!(
        parse(Endpoint::Completions, br#"{"prompt":["a","b"]}"#)
            .unwrap()
            .fingerprint
            .chain
            .is_empty()
    );
}
