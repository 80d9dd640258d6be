//! Tests of API keys.

use super::*;

const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn key(name: &str, hash: &str, more: &str) -> String {
    format!("[[keys]]\nname = {name:?}\nsha256 = {hash:?}\n{more}")
}

#[test]
fn a_name_and_a_hash_are_all_that_a_key_needs() {
    let config = load_text(&format!("{ONE_WORKER}{}", key("a", HASH, ""))).unwrap();
    let key = &config.keys[0];
    assert_eq!((key.tenant.as_str(), key.weight, key.priority), ("a", 1.0, 0));
    assert_eq!((key.requests, key.tokens), (None, None));
    assert_eq!(key.digest.0[..2], [0x9f, 0x86]);
    assert_eq!(
        format!("{:?}", key.digest),
        "sha256:9f86…",
        "no log has the whole hash"
    );
}

#[test]
fn limits_say_what_they_let_through_at_once() {
    let limited = |more: &str| {
        load_text(&format!("{ONE_WORKER}{}", key("a", HASH, more)))
            .unwrap()
            .keys
            .remove(0)
    };
    let burst = |more: &str| limited(more).requests.unwrap().burst;
    assert_eq!(burst("requests_per_s = 0.5\n"), 1.0);
    assert_eq!(burst("requests_per_s = 20\n"), 20.0);
    assert_eq!(burst("requests_per_s = 20\nrequests_burst = 5\n"), 5.0);
    let tokens = limited("tokens_per_min = 6000\n").tokens.unwrap();
    assert_eq!((tokens.per_s, tokens.burst), (100.0, 6000.0));
}

#[test]
fn names_and_hashes_of_keys_are_unique_and_whole() {
    let other = HASH.replace('9', "8");
    refused(
        &format!(
            "{ONE_WORKER}{}{}{}",
            key("a", HASH, ""),
            key("a", &other, ""),
            key("b", HASH, "")
        ),
        &[
            "t.toml:7:1: keys[1].name: `a` is already the name of another key",
            "t.toml:11:1: keys[2].sha256: is already the key `a`",
        ],
    );
    let told = complaints(load_text(&format!("{ONE_WORKER}{}", key("a", "sk-secret", ""))));
    assert!(told[0].contains("expected the 64 hexadecimal digits"), "{told:?}");
    assert!(
        !told[0].contains("sk-secret"),
        "a key written by mistake is not repeated: {told:?}"
    );
}

#[test]
fn a_file_of_keys_is_read_beside_the_others_and_its_mistakes_are_placed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let with = |keys: &str| {
        std::fs::write(&path, keys).unwrap();
        let file = format!("{:?}", path.display().to_string());
        load_text(&format!(
            "admission.keys_file = {file}\n{ONE_WORKER}{}",
            key("a", HASH, "")
        ))
    };
    let names = |config: Config| config.keys.into_iter().map(|key| key.name).collect::<Vec<_>>();
    assert_eq!(
        names(with(&key("b", &HASH.replace('9', "8"), "")).unwrap()),
        ["a", "b"]
    );
    let at = |line: usize, column: usize| format!("{}:{line}:{column}: ", path.display());
    let told = complaints(with(&key("b", &HASH.replace('9', "8"), "wieght = 3\n")));
    assert_eq!(
        told,
        [at(4, 1) + "keys[0].wieght: unknown key; did you mean `weight`?"]
    );
    let told = complaints(with(&key("a", &HASH.replace('9', "8"), "")));
    assert_eq!(
        told,
        [at(2, 1) + "keys[0].name: `a` is already the name of another key"]
    );
    std::fs::remove_file(&path).unwrap();
    let told = complaints(load_text(&format!(
        "admission.keys_file = \"/nowhere/k\"\n{ONE_WORKER}"
    )));
    assert_eq!(
        told,
        ["t.toml:1:11: admission.keys_file: /nowhere/k: cannot be read"]
    );
}

#[test]
fn the_secret_of_salts_is_long_and_never_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("salt");
    let with = |secret: &str| {
        std::fs::write(&path, secret).unwrap();
        let file = format!("{:?}", path.display().to_string());
        load_text(&format!("admission.salt_secret_file = {file}\n{ONE_WORKER}"))
    };
    let long = "0123456789abcdef0123456789abcdef";
    let config = with(&format!("{long}\n")).unwrap();
    assert_eq!(config.admission.salt_secret.as_ref().unwrap().expose(), long);
    assert!(!format!("{config:?}").contains(long));
    for short in [&long[1..], "", "two words are no secret, however long they are"] {
        let told = complaints(with(short));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("admission.salt_secret_file: ")
                && (short.is_empty() || !told[0].contains(short))
        );
    }
}

#[test]
fn a_certificate_and_its_key_come_together() {
    let told = |text: &str| complaints(load_text(&format!("{ONE_WORKER}{text}")));
    assert_eq!(
        told("[tls]\ncert_file = \"c\"\n"),
        ["t.toml:3:2: tls.key_file: missing; a certificate and its key come together"]
    );
    assert!(told("[tls]\nclient_ca_file = \"c\"\n")[0].contains("the port is not encrypted"));
    assert!(told("[tls.workers]\nkey_file = \"c\"\n")[0].contains("tls.workers.cert_file: missing"));
    let text = "[tls]\ncert_file = \"c\"\nkey_file = \"k\"\nclient_ca_file = \"a\"\n[tls.workers]\nca_file = \"w\"\n";
    let config = load_text(&format!("{ONE_WORKER}{text}")).unwrap();
    assert_eq!(config.tls.files().len(), 4);
}
