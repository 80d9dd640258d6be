use proptest::prelude::*;

use super::*;

const LONGEST: usize = 1 << 10;

fn lines(chunks: &[&[u8]]) -> Vec<String> {
    let (mut out, mut lines) = (Vec::new(), Lines::new(LONGEST));
    for chunk in chunks {
        lines.push(chunk, |line| out.push(String::from_utf8_lossy(line).into_owned()));
    }
    out
}

fn events(chunks: &[&[u8]]) -> Vec<String> {
    let (mut out, mut events) = (Vec::new(), Events::new(LONGEST));
    for chunk in chunks {
        events
            .push(chunk, |event| {
                out.push(String::from_utf8_lossy(event).into_owned())
            })
            .unwrap();
    }
    out
}

const STREAM: &str = "data: {\"a\":\"ä€😀\"}\n\n: comment\r\nevent: x\r\ndata:one\r\ndata: two\r\n\r\ndata\r\rdata: [DONE]\r\r";

#[test]
fn splitting_at_every_byte_changes_nothing() {
    let bytes = STREAM.as_bytes();
    let (all_lines, all_events) = (lines(&[bytes]), events(&[bytes]));
    assert_eq!(all_lines.len(), 11);
    assert_eq!(all_events, ["{\"a\":\"ä€😀\"}", "one\ntwo", "[DONE]"]);
    for cut in 0..=bytes.len() {
        let (left, right) = bytes.split_at(cut);
        assert_eq!(lines(&[left, right]), all_lines, "cut at {cut}");
        assert_eq!(events(&[left, right]), all_events, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!((lines(&single), events(&single)), (all_lines, all_events));
}

#[test]
fn data_may_or_may_not_be_followed_by_a_space() {
    assert_eq!(data(b"data: x"), Some(&b"x"[..]));
    assert_eq!(data(b"data:x"), Some(&b"x"[..]));
    assert_eq!(data(b"data:  x"), Some(&b" x"[..]));
    assert_eq!(data(b"event: x"), None);
}

#[test]
fn a_line_is_yielded_at_its_end_and_an_event_at_the_empty_line() {
    assert_eq!(lines(&[b"data: [DONE]\n"]), ["data: [DONE]"]);
    assert!(events(&[b"data: [DONE]\n"]).is_empty());
    assert_eq!(events(&[b"data: [DONE]\n", b"\n"]), ["[DONE]"]);
}

#[test]
fn a_flood_of_line_ends_yields_nothing_between_events() {
    for flood in ["\n", "\r", "\r\n", "\n\r"] {
        let flood = flood.repeat(1000);
        let text = format!("{flood}data: a{flood}data: b\n\n{flood}");
        assert_eq!(
            lines(&[text.as_bytes()]),
            ["data: a", "", "data: b", ""],
            "{flood:?}"
        );
        assert_eq!(events(&[text.as_bytes()]), ["a", "b"]);
        let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(lines(&single), ["data: a", "", "data: b", ""], "{flood:?}");
    }
}

#[test]
fn a_complete_line_is_yielded_without_a_copy() {
    let chunk = b"data: one\r\ndata: two\n\n";
    let mut lines = Lines::default();
    lines.push(chunk, |line| {
        assert!(chunk.as_ptr_range().contains(&line.as_ptr()));
    });
    assert_eq!(lines.carry.capacity(), 0);
}

#[test]
fn an_overlong_line_is_skipped_and_the_next_one_is_yielded() {
    let flood = vec![b'x'; LONGEST / 2 + 1];
    let (mut sink, mut seen) = (Lines::new(LONGEST), Vec::new());
    for _ in 0..10 {
        sink.push(&flood, |line| seen.push(line.len()));
        assert!(sink.carry.capacity() <= LONGEST * 2);
    }
    assert_eq!(sink.position(), StreamPosition::InLongLine);
    sink.push(b"tail\nnext\n", |line| seen.push(line.len()));
    assert_eq!((&seen[..], sink.skipped()), (&[4][..], 1));
    assert_eq!(sink.position(), StreamPosition::InEvent { after_cr: false });
    sink.push(&[vec![b'y'; LONGEST + 1], b"\n\n".to_vec()].concat(), |line| {
        seen.push(line.len());
    });
    assert_eq!((&seen[..], sink.skipped()), (&[4, 0][..], 2));
    assert_eq!(sink.position(), StreamPosition::Between);
}

#[test]
fn an_overlong_event_is_rejected_and_its_buffer_freed() {
    let mut events = Events::new(LONGEST);
    let line = [b"data: ".to_vec(), vec![b'x'; LONGEST / 2], b"\n".to_vec()].concat();
    events.push(&line, |_| ()).unwrap();
    for more in [&line[..], b"\n", b"data: y\n\n"] {
        assert_eq!(events.push(more, |_| panic!("an event")), Err(TooLong(LONGEST)));
    }
    assert_eq!(events.data.capacity() + events.lines.carry.capacity(), 0);
    let flood = vec![b'x'; LONGEST + 1];
    assert_eq!(Events::new(LONGEST).push(&flood, |_| ()), Err(TooLong(LONGEST)));
}

#[test]
fn the_position_says_what_has_to_be_closed() {
    let position = |text: &str, expected: StreamPosition<'_>| {
        let mut lines = Lines::new(LONGEST);
        lines.push(text.as_bytes(), |_| ());
        assert_eq!(lines.position(), expected, "{text:?}");
    };
    for between in ["", "\n", "data: x\n\n", "data: x\r\n\r\n", "data: x\r\r"] {
        position(between, StreamPosition::Between);
    }
    for within in ["data: x\n", "data: x\r\n", "data: x\n\nevent: y\n"] {
        position(within, StreamPosition::InEvent { after_cr: false });
    }
    position("data: x\r", StreamPosition::InEvent { after_cr: true });
    position("data: x\n\ndata", StreamPosition::InLine(b"data"));
}

/// Splits the whole text at the standard's line endings, and removes empty lines that follow no other line.
fn yielded_lines(text: &str) -> Vec<String> {
    let mut lines = naive_lines(text);
    let mut in_event = false;
    lines.retain(|line| {
        let before = std::mem::replace(&mut in_event, !line.is_empty());
        before || in_event
    });
    lines
}

/// Splits the whole text at the standard's line endings.
fn naive_lines(text: &str) -> Vec<String> {
    let normal = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<String> = normal.split('\n').map(str::to_owned).collect();
    lines.pop();
    lines
}

/// Parses the whole text into the standard's events.
fn naive_events(text: &str) -> Vec<String> {
    let (mut events, mut open): (_, Vec<String>) = (Vec::new(), Vec::new());
    for line in naive_lines(text) {
        if line.is_empty() {
            if !open.is_empty() {
                events.push(open.join("\n"));
            }
            open.clear();
        } else if let Some((_, value)) = line.split_once(':').filter(|(field, _)| *field == "data") {
            open.push(value.strip_prefix(' ').unwrap_or(value).to_owned());
        }
    }
    events
}

proptest! {
    #[test]
    fn lines_equal_splitting_the_whole(chunks in prop::collection::vec("[a\n\r]{0,6}", 0..12)) {
        let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
        prop_assert_eq!(lines(&pieces), yielded_lines(&chunks.concat()));
    }

    #[test]
    fn events_equal_the_standard_on_the_whole(
        chunks in prop::collection::vec("(data: ?[a-z]{0,3}|:[a-z]|data|\n|\r|\r\n|x){0,6}", 0..12),
    ) {
        let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
        prop_assert_eq!(events(&pieces), naive_events(&chunks.concat()));
    }
}
