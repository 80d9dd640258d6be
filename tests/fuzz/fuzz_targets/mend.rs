//! Any stream that breaks off anywhere: its client can read the error that is said last.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::mend::last_words;
use protocol::api::Family;

fuzz_target!(|stream: &[u8]| {
    let error = br#"{"error":{"code":"gone"}}"#;
    let mut lines = sse::Lines::default();
    lines.push(stream, |_| ());
    let said = last_words(lines.position(), error, Family::OpenAi);
    let (mut events, mut last) = (sse::Events::default(), Vec::new());
    events
        .push(&[stream, &said].concat(), |event| last = event.to_vec())
        .expect("no input is that long");
    let text = String::from_utf8_lossy(&last);
    assert!(text.contains(r#""error":{"code":"gone"}}"#), "{text}");
});
