//! Any stream, in any chunks: lines and events do not depend on how it was split, and are the standard's.
#![no_main]

use libfuzzer_sys::fuzz_target;

const LONGEST: usize = 64;

fn lines(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, u64) {
    let (mut lines, mut seen) = (sse::Lines::new(LONGEST), Vec::new());
    chunks.iter().for_each(|chunk| lines.push(chunk, |line| seen.push(line.to_vec())));
    (seen, lines.skipped())
}

fn events(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
    let (mut events, mut seen) = (sse::Events::new(LONGEST), Vec::new());
    let pushed = chunks.iter().try_for_each(|chunk| events.push(chunk, |event| seen.push(event.to_vec())));
    (seen, pushed.is_ok())
}

/// Lines of the whole: split at LF, CRLF and CR; what has no end is none.
fn naive(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        lines.push(rest[..end].to_vec());
        let both = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + 1 + usize::from(both)..];
    }
    lines
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (sizes, stream) = input;
    let (mut chunks, mut rest) = (Vec::new(), stream);
    for size in sizes {
        let (chunk, more) = rest.split_at(usize::from(size).min(rest.len()));
        chunks.push(chunk);
        rest = more;
    }
    chunks.push(rest);
    let (mut wanted, mut in_event) = (naive(stream), false);
    // Empty lines between events are passed over, and so are lines beyond the bound.
    wanted.retain(|line| std::mem::replace(&mut in_event, !line.is_empty()) || in_event);
    wanted.retain(|line| line.len() <= LONGEST);
    assert_eq!(lines(&chunks).0, wanted);
    assert_eq!(lines(&chunks), lines(&[stream]));
    let (split, whole) = (events(&chunks), events(&[stream]));
    // Of a stream that is given up, how far it was read depends on its chunks.
    assert_eq!(split.1, whole.1);
    assert!(!whole.1 || split == whole);
});
