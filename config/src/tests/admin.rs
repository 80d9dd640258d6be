//! Tests of the admin port and its tokens.

use crate::Role;

use super::*;

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

#[test]
fn a_listener_beyond_loopback_needs_tokens() {
    for address in ["0.0.0.0:9090", "10.0.0.1:9090", "[::]:9090"] {
        let told = complaints(load_text(&format!(
            "{ONE_WORKER}[admin]\nlisten = \"{address}\"\n"
        )));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("admin.tokens_file: missing") && told[0].contains("tailroute key new"),
            "{told:?}"
        );
    }
    for address in ["127.0.0.1:9090", "[::1]:9090"] {
        load_text(&format!("{ONE_WORKER}[admin]\nlisten = \"{address}\"\n")).unwrap();
    }
}

#[test]
fn tokens_come_from_a_file_whose_mistakes_are_named_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let file = toml::Value::String(file.display().to_string());
        load_text(&format!(
            "{ONE_WORKER}[admin]\nlisten = \"0.0.0.0:9090\"\ntokens_file = {file}\n"
        ))
    };
    let token = |name: &str, role: &str| {
        format!("[[tokens]]\nname = \"{name}\"\nrole = \"{role}\"\nsha256 = \"{DIGEST}\"\n")
    };
    let config = with(&token("alice", "operate")).unwrap();
    let [alice] = config.admin.tokens.as_slice() else {
        panic!("one token");
    };
    assert_eq!((alice.name.as_str(), alice.role), ("alice", Role::Operate));
    assert!(Role::Read < Role::Operate && Role::Operate < Role::Admin);
    let told = complaints(with(&token("alice", "root")));
    assert!(
        told[0].contains("tokens[0].role: expected one of read, operate, admin"),
        "{told:?}"
    );
    let twice = format!("{}{}", token("alice", "read"), token("bob", "admin"));
    let told = complaints(with(&twice));
    assert!(
        told[0].contains("tokens[1].sha256: is already the token `alice`"),
        "{told:?}"
    );
    for reserved in ["router", "Loopback"] {
        let told = complaints(with(&token(reserved, "read")));
        assert!(
            told[0].contains("tokens[0].name") && told[0].contains("audit log"),
            "{told:?}"
        );
    }
    let told = complaints(with("[[tokens]]\nname = \"alice\"\n"));
    assert!(
        told.iter().any(|told| told.contains("tokens[0].role: missing")),
        "{told:?}"
    );
}
