//! Any request body: read as JSON by the same rules as `serde_json`, and fingerprinted alike however it is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::api::Endpoint;
use protocol::json::Scanner;
use protocol::parse::parse;

fuzz_target!(|body: &[u8]| {
    check(Endpoint::Chat, body);
    check(Endpoint::Completions, body);
    check(Endpoint::Messages, body);
    check(Endpoint::Responses, body);
    check(Endpoint::Generate, body);
});

fn check(endpoint: Endpoint, body: &[u8]) {
    let read = parse(endpoint, body);
    let Ok(text) = std::str::from_utf8(body) else {
        assert!(read.is_err());
        return;
    };
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    let Ok(read) = read else {
        let deep = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() > 512;
        assert!(!is_json || deep);
        return;
    };
    assert!(is_json);
    let keys = &read.fingerprint.chain;
    assert!(keys.ends().is_sorted());
    let mut spelled = Vec::new();
    let copied = Scanner::new(body).compact(&mut |bytes: &[u8]| spelled.extend_from_slice(bytes));
    assert_eq!(copied, Ok(()));
    let again = parse(endpoint, &spelled).map_err(|error| error.to_string());
    assert_eq!(again.as_ref().map(|again| &again.fingerprint.chain), Ok(keys));
}
