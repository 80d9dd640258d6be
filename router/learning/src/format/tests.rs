use policy::cache::Piece;
use policy::ids::PrefixHash;
use policy::tail::Class;
use policy::units::{Millis, Tokens};
use proptest::prelude::*;

use super::*;

fn contents() -> Contents {
    let entry = |hash, parent| Entry {
        piece: Piece {
            hash: PrefixHash(hash),
            tokens: 64,
        },
        parent,
    };
    let conversation = |key, stage, finish| KeptConversation {
        key,
        turns: 3,
        length: Tokens(1_234),
        class: TurnClass {
            stage,
            tools: key % 2 == 0,
            key: None,
            finish,
        },
        heard: Millis(2_000.5),
        ended: Millis(1_000.25),
        is_over: key % 3 == 0,
    };
    let stages = Stage::ALL.into_iter().cycle().take(10);
    let finishes = FINISHES.into_iter().cycle();
    Contents {
        taken_ms: 1_800_000_000_000,
        decisions: br#"{"removed":[]}"#.to_vec(),
        audit: br#"{"next":7}"#.to_vec(),
        learned: br#"{"workers":[]}"#.to_vec(),
        models: vec![("llama".to_owned(), 0.25, 3)],
        outcomes: [
            Then::Next(Millis(1.5)),
            Then::Silence(None),
            Then::Silence(Some(7)),
        ]
        .map(|then| Outcome {
            class: Class::of(3, Tokens(100), true),
            age: Millis(2_000.0),
            then,
        })
        .to_vec(),
        conversations: (0..)
            .zip(stages)
            .zip(finishes)
            .map(|((key, stage), finish)| conversation(key, stage, finish))
            .collect(),
        workers: vec![
            ("a:8000".to_owned(), vec![entry(3, Some(1)), entry(2, None)]),
            ("b".to_owned(), Vec::new()),
        ],
        places: vec![
            (1, 2, PositionKind::Tip),
            (3, 4, PositionKind::Guessed),
            (5, 6, PositionKind::Counted),
        ],
        last_workers: vec![(7, 1)],
        prompts: vec![(9, 7)],
    }
}

/// Returns the same file without sections.
fn undivided(contents: &Contents) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&UNDIVIDED.to_le_bytes());
    word(&mut out, contents.taken_ms);
    caches(&mut out, contents);
    models(&mut out, contents);
    places(&mut out, contents);
    list(&mut out, &contents.outcomes, outcome);
    sum_from(&mut out, 0);
    out
}

/// Returns the sections that differ from those of `whole`, and whether each of them is empty.
fn differing(whole: &Contents, read: &Contents) -> Vec<(&'static str, bool)> {
    let none = Contents::default();
    let caches = |of: &Contents| {
        (
            of.workers.clone(),
            of.places.clone(),
            of.last_workers.clone(),
            of.prompts.clone(),
        )
    };
    let parts = [
        (
            "decisions",
            whole.decisions != read.decisions,
            read.decisions == none.decisions,
        ),
        ("audit log", whole.audit != read.audit, read.audit == none.audit),
        (
            "costs and habits",
            whole.learned != read.learned,
            read.learned == none.learned,
        ),
        ("models", whole.models != read.models, read.models == none.models),
        (
            "returns",
            whole.outcomes != read.outcomes,
            read.outcomes == none.outcomes,
        ),
        (
            "conversations",
            whole.conversations != read.conversations,
            read.conversations == none.conversations,
        ),
        (
            "caches",
            caches(whole) != caches(read),
            caches(read) == caches(&none),
        ),
    ];
    let differing = parts.into_iter().filter(|(_, differs, _)| *differs);
    differing.map(|(name, _, is_empty)| (name, is_empty)).collect()
}

#[test]
fn a_written_snapshot_is_read() {
    let decoded = decode(&encode(&contents())).unwrap();
    assert_eq!((decoded.contents, decoded.left_out), (contents(), vec![]));
    let none = Contents::default();
    assert_eq!(decode(&encode(&none)).unwrap().contents, none);
}

#[test]
fn the_documents_are_read_from_the_beginning_of_a_file() {
    let bytes = encode(&contents());
    let early = Contents {
        taken_ms: contents().taken_ms,
        decisions: contents().decisions,
        audit: contents().audit,
        learned: contents().learned,
        ..Contents::default()
    };
    let documents = contents().decisions.len() + contents().audit.len() + contents().learned.len();
    let end = HEAD + 3 * (SECTION_HEAD + 8) + documents;
    for cut in [end, end + 1, end + 30, bytes.len()] {
        let decoded = decode_early(&bytes[..cut]).unwrap();
        assert_eq!(decoded.contents, early, "cut at {cut}");
    }
    assert!(!decode_early(&bytes[..end - 1]).unwrap().left_out.is_empty());
    assert!(end <= EARLY_BYTES);
}

#[test]
fn a_changed_byte_costs_its_section_and_what_follows_a_changed_length_and_is_named() {
    let (whole, bytes) = (contents(), encode(&contents()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        let Ok(decoded) = decode(&damaged) else {
            assert!(at < HEAD, "byte {at}");
            continue;
        };
        assert!(at >= HEAD, "byte {at}: the head is checked as a whole");
        let differing = differing(&whole, &decoded.contents);
        assert!(!decoded.left_out.is_empty() && !differing.is_empty(), "byte {at}");
        assert!(
            differing.iter().all(|(_, is_empty)| *is_empty),
            "byte {at}: {differing:?}"
        );
    }
}

#[test]
fn a_byte_changed_within_a_section_leaves_all_others_in_place() {
    let (whole, bytes) = (contents(), encode(&contents()));
    let at = bytes.windows(5).position(|found| found == b"llama").unwrap();
    let mut damaged = bytes;
    damaged[at] ^= 1;
    let decoded = decode(&damaged).unwrap();
    assert_eq!(differing(&whole, &decoded.contents), [("models", true)]);
    assert_eq!(decoded.left_out, ["models (damaged)"]);
}

#[test]
fn a_file_that_was_cut_off_keeps_its_whole_sections() {
    let (whole, bytes) = (contents(), encode(&contents()));
    for at in 0..bytes.len() {
        let Ok(decoded) = decode(&bytes[..at]) else {
            assert!(at < HEAD, "cut at {at}");
            continue;
        };
        let differing = differing(&whole, &decoded.contents);
        assert!(
            differing.iter().all(|(_, is_empty)| *is_empty),
            "cut at {at}: {differing:?}"
        );
        // A cut between two sections looks like a file without the later ones.
        assert!(
            !differing.is_empty() && decoded.left_out.len() <= 1,
            "cut at {at}"
        );
    }
}

#[test]
fn a_section_of_another_version_is_left_out_and_named() {
    let mut bytes = encode(&contents());
    let start = bytes.len();
    bytes.extend_from_slice(&99_u32.to_le_bytes());
    word(&mut bytes, 3);
    bytes.extend_from_slice(b"new");
    sum_from(&mut bytes, start);
    let decoded = decode(&bytes).unwrap();
    assert_eq!(decoded.contents, contents());
    assert_eq!(decoded.left_out, ["part 99 (of another version)"]);
}

#[test]
fn the_parts_that_are_named_are_bounded() {
    let mut bytes = encode(&Contents::default());
    for _ in 0..1_000 {
        let start = bytes.len();
        bytes.extend_from_slice(&99_u32.to_le_bytes());
        word(&mut bytes, 0);
        sum_from(&mut bytes, start);
    }
    assert_eq!(decode(&bytes).unwrap().left_out.len(), MOST_NAMED);
}

#[test]
fn a_file_of_the_version_before_sections_is_read() {
    let bytes = undivided(&contents());
    let old = Contents {
        decisions: Vec::new(),
        audit: Vec::new(),
        learned: Vec::new(),
        conversations: Vec::new(),
        ..contents()
    };
    let decoded = decode(&bytes).unwrap();
    assert_eq!((decoded.contents, decoded.left_out), (old, vec![]));
    assert_eq!(decode_early(&bytes), Ok(Decoded::default()));
    for at in 12..bytes.len() {
        assert_eq!(decode(&bytes[..at]), Err(FormatError::Damaged), "cut at {at}");
    }
}

#[test]
fn files_of_other_programs_and_versions_are_refused() {
    let with_version = |version: u32| {
        let mut bytes = encode(&contents());
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes
    };
    assert_eq!(decode(&with_version(6)), Err(FormatError::Version(6)));
    assert_eq!(decode(&with_version(9)), Err(FormatError::Version(9)));
    for foreign in [&b""[..], b"tailrou", b"PK\x03\x04 something else", b"{}"] {
        assert_eq!(decode(foreign), Err(FormatError::Foreign));
        assert_eq!(decode_early(foreign), Err(FormatError::Foreign));
    }
}

#[test]
fn a_document_that_is_too_long_is_neither_written_nor_read() {
    let mut long = contents();
    long.audit = vec![b' '; MAX_DOCUMENT_BYTES + 1];
    let decoded = decode(&encode(&long)).unwrap();
    assert_eq!(differing(&contents(), &decoded.contents), [("audit log", true)]);
    let mut bytes = encode(&Contents::default());
    section(&mut bytes, Section::Audit, |out| {
        out.extend_from_slice(&long.audit)
    });
    assert_eq!(decode(&bytes).unwrap().left_out, ["audit log (damaged)"]);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_even_if_the_checksums_hold(
        kind in 0..9_u32,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut file = encode(&Contents::default());
        let start = file.len();
        file.extend_from_slice(&kind.to_le_bytes());
        word(&mut file, bytes.len() as u64);
        file.extend_from_slice(&bytes);
        sum_from(&mut file, start);
        let _ = (decode(&file), decode_early(&file), decode(&bytes));
        let mut old = MAGIC.to_vec();
        old.extend_from_slice(&UNDIVIDED.to_le_bytes());
        old.extend_from_slice(&bytes);
        sum_from(&mut old, 0);
        let _ = decode(&old);
    }
}
