//! Traces through the binary: generated Bailian files up to the size of the published ones, and refused ones.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::{reports, tailroute};

/// A platform-independent generator (Knuth's MMIX).
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A chat that may be continued.
struct Chat {
    id: i64,
    turn: u64,
    /// Tokens of its prompt and response.
    said: u64,
    /// Full blocks of its prompt.
    full: Vec<u64>,
    conversation: u64,
    continued: bool,
}

/// The tokens that a cache without eviction has to compute.
#[derive(Default)]
struct Expected {
    turns: u64,
    private: u64,
    shared: u64,
}

/// Writes a trace of the published shape: chats that name their parents, some twice; four types with a system prompt
/// each; 16-token blocks, the last of a prompt partly filled and never repeated; ids in no order.
fn bailian(path: &Path, chats: u64) -> Expected {
    let mut file = GzEncoder::new(std::fs::File::create(path).unwrap(), Compression::fast());
    let mut draws = Draws(7);
    let (mut open, mut seen): (Vec<Chat>, HashSet<u64>) = (Vec::new(), HashSet::new());
    let (mut expected, mut next_block, mut conversations) = (Expected::default(), 1_000u64, 0);
    let mut resident: HashMap<u64, u64> = HashMap::new();
    let mut ms = 0;
    for at in 0..chats {
        ms += draws.below(400);
        let kind = draws.below(4);
        let id = (at * 2_654_435_761 % (1 << 31)) as i64;
        let (added, answer) = (20 + draws.below(2_000), 1 + draws.below(800));
        let parent =
            (!open.is_empty() && draws.below(5) < 3).then(|| draws.below(open.len() as u64) as usize);
        let (parent_id, turn, history, mut blocks, conversation) = match parent {
            Some(place) => {
                let parent = &mut open[place];
                // A second child is a branch: its conversation is separate, its blocks are shared.
                let conversation = if std::mem::replace(&mut parent.continued, true) {
                    conversations += 1;
                    conversations
                } else {
                    parent.conversation
                };
                (
                    parent.id,
                    parent.turn + 1,
                    parent.said,
                    parent.full.clone(),
                    conversation,
                )
            }
            None => {
                conversations += 1;
                // 30 blocks of system prompt per type.
                (-1, 1, 0, (kind * 100..kind * 100 + 30).collect(), conversations)
            }
        };
        let input = (history + added).max(blocks.len() as u64 * 16 + 1);
        let (full, covered) = (input / 16, input.div_ceil(16));
        while (blocks.len() as u64) < covered {
            blocks.push(next_block);
            next_block += 1;
        }
        let name = ["text", "search", "image", "file"][kind as usize];
        let parents = format!(r#""chat_id":{id},"parent_chat_id":{parent_id},"turn":{turn},"type":"{name}""#);
        let lengths = format!(r#""input_length":{input},"output_length":{answer},"hash_ids":{blocks:?}"#);
        writeln!(file, r#"{{{parents},"timestamp":{},{lengths}}}"#, ms as f64 / 1e3).unwrap();
        blocks.truncate(full as usize);
        let hits = blocks.iter().take_while(|block| seen.contains(block)).count() as u64;
        seen.extend(&blocks);
        expected.turns += 1;
        expected.shared += input - 16 * hits;
        expected.private += input - resident.get(&conversation).copied().unwrap_or(0).min(history);
        resident.insert(conversation, input + answer);
        let said = input + answer;
        let chat = Chat {
            id,
            turn,
            said,
            full: blocks,
            conversation,
            continued: false,
        };
        // Long chats end, which bounds the number of open ones.
        if chat.full.len() < 300 {
            open.push(chat);
        }
        if open.len() > 2_000 {
            open.swap_remove(draws.below(2_000) as usize);
        }
    }
    file.finish().unwrap();
    expected
}

/// Runs this many chats, private and shared, each in this many MiB of address space (allocator, stacks and binary
/// included). The reader keeps the state of its checks; a shared cache without eviction also keeps every block.
fn stream(chats: u64, mib: [u64; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bailian.jsonl.gz");
    let expected = bailian(&path, chats);
    let runs = [
        ("", expected.private, mib[0]),
        ("--shared", expected.shared, mib[1]),
    ];
    for (more, uncached, mib) in runs {
        let command = format!(
            "ulimit -v {} && exec '{}' sim cache --json --xi-ms 1 --capacity-tokens 10000000000 --policies lru --trace '{}' {more}",
            mib * 1024,
            env!("CARGO_BIN_EXE_tailroute-lab"),
            path.display()
        );
        let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report[0]["turns"], expected.turns, "{more}");
        assert_eq!(report[0]["sum_uncached"], uncached, "{more}");
    }
}

#[test]
fn every_turn_of_a_bailian_trace_comes_out_as_its_chats_say() {
    stream(2_000, [256, 256]);
}

/// The size of a published trace: some three million block ids.
#[test]
#[ignore = "takes minutes without optimisation"]
fn a_bailian_trace_of_full_size_streams_through_in_bounded_memory() {
    stream(30_000, [256, 768]);
}

/// Returns the binary's error for a file with these bytes.
fn complaint(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let path = file.path().to_str().unwrap();
    let output = tailroute(&[
        "sim",
        "cache",
        "--trace",
        path,
        "--capacity-tokens",
        "10",
        "--xi-ms",
        "1",
    ]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(bytes)
    );
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// A valid line of each format, with replacements that make it invalid.
const GOOD: [(&str, &str); 4] = [
    (
        "turn",
        r#"{"ts":5,"conv":1,"turn":0,"prompt_tokens":8,"response_tokens":1,"blocks":[1,2]}"#,
    ),
    (
        "capture",
        r#"{"ts":5,"conv":1,"turn":0,"prompt_tokens":8,"response_tokens":1,"blocks":[1,2],"worker":3}"#,
    ),
    (
        "mooncake",
        r#"{"timestamp":5,"input_length":1024,"output_length":1,"hash_ids":[1,2]}"#,
    ),
    (
        "bailian",
        r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":5,"input_length":32,"output_length":1,"type":"text","turn":1,"hash_ids":[1,2]}"#,
    ),
];

#[test]
fn every_format_refuses_bad_lines_with_number_and_reason() {
    for (format, good) in GOOD {
        let own = matches!(format, "turn" | "capture");
        let meta = match format {
            "turn" => "{\"meta\":{\"bs\":4}}\n",
            "capture" => "{\"meta\":{\"bs\":4,\"capture\":true}}\n",
            _ => "",
        };
        let time = if own { "\"ts\":5" } else { "\"timestamp\":5" };
        let length = if own {
            "\"prompt_tokens\":8"
        } else if format == "mooncake" {
            "\"input_length\":1024"
        } else {
            "\"input_length\":32"
        };
        let (name, value) = length.split_once(':').unwrap();
        let again = |line: &str| {
            line.replace("\"conv\":1", "\"conv\":2")
                .replace("\"chat_id\":1", "\"chat_id\":2")
        };
        let field = name.trim_matches('"');
        let cases = [
            (
                again(good).replace(time, &time.replace('5', "4")),
                "not sorted by time: ".to_owned(),
            ),
            (
                again(good).replace(time, &time.replace('5', "-4")),
                "expected a time of at least 0, found -".to_owned(),
            ),
            (
                again(good).replace(length, &format!("{name}:-{value}")),
                format!("field `{field}`: expected a whole number that is not negative, found -{value}"),
            ),
            (
                again(good).replace(length, &format!("{name}:\"many\"")),
                format!("field `{field}`: expected a whole number that is not negative, found \"many\""),
            ),
            (
                again(good).replace(length, &format!("{name}:null")),
                format!("field `{field}`: "),
            ),
            (
                again(good).replace(&format!("{length},"), ""),
                format!("field `{field}`: missing"),
            ),
            (
                again(good).replace("[1,2]", "[3,2]"),
                "block 2 at position 1 follows block 3, but followed block 1 \
                before: an id must identify a whole prefix"
                    .to_owned(),
            ),
            (
                again(good).replace("[1,2]", "[2,3]"),
                "block 2 at position 0 follows nothing, but followed block 1 before".to_owned(),
            ),
            (again(good).replace("[1,2]", "[1]"), "1 blocks of ".to_owned()),
            (
                again(good).replace("[1,2]", "[1,\"two\"]"),
                "expected a list of whole numbers that are not negative, found [1,\"two\"]".to_owned(),
            ),
            ("[]".to_owned(), "not a JSON object".to_owned()),
            (good[..good.len() / 2].to_owned(), "not a JSON object".to_owned()),
        ];
        let line = 3 + u64::from(!meta.is_empty());
        for (bad, reason) in cases {
            // A blank line counts.
            let said = complaint(format!("{meta}{good}\n\n{bad}\n").as_bytes());
            assert!(
                said.contains(&format!("line {line}: ")) && said.contains(&reason),
                "{format}: {bad}\n{said}"
            );
        }
    }
}

#[test]
fn each_format_refuses_what_only_it_can_get_wrong() {
    let turn = |more: &str| {
        format!("{{\"ts\":5,\"conv\":1,\"turn\":0,\"prompt_tokens\":8,\"response_tokens\":1{more}}}")
    };
    let [strict, capture] = [("", 1), ("{\"meta\":{\"bs\":4,\"capture\":true}}\n", 2)];
    let said = complaint(format!("{}{}", strict.0, turn(",\"wait\":3")).as_bytes());
    assert!(said.contains("line 1: field `wait`: unknown"), "{said}");
    // A capture may have more fields; its known fields are checked like any other.
    let said = complaint(format!("{}{}\n{}", capture.0, turn(",\"wait\":3"), turn(",\"wait\":4")).as_bytes());
    assert!(
        said.contains("line 3: conversation 1: turn 0 comes after turn 0"),
        "{said}"
    );
    let said = complaint(turn(",\"blocks\":[1,2]").as_bytes());
    assert!(said.contains("line 1: blocks without `meta.bs`"), "{said}");
    let said = complaint(format!("{}\n{{\"meta\":{{\"bs\":4}}}}", turn("")).as_bytes());
    assert!(
        said.contains("line 2: a single meta line is allowed, before the first turn"),
        "{said}"
    );
    let bailian = GOOD[3].1;
    let said = complaint(format!("{bailian}\n{bailian}").as_bytes());
    assert!(
        said.contains("line 2: field `chat_id`: 1 was seen before"),
        "{said}"
    );
    let said = complaint(br#"{"hello":"world"}"#);
    assert!(said.contains("line 1: not a line of a turn trace"), "{said}");
}

#[test]
fn a_truncated_file_is_refused_where_it_ends_and_never_shortened() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.jsonl.gz");
    bailian(&whole, 1_000);
    let bytes = std::fs::read(&whole).unwrap();
    let path = whole.to_str().unwrap();
    let turns = reports(&[
        "sim",
        "cache",
        "--trace",
        path,
        "--capacity-tokens",
        "10",
        "--xi-ms",
        "1",
        "--json",
    ]);
    assert_eq!(turns[0]["turns"], 1_000);
    for keep in [bytes.len() / 2, bytes.len() - 1] {
        let said = complaint(&bytes[..keep]);
        let line: u64 = said
            .split("line ")
            .nth(1)
            .unwrap()
            .split(':')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(
            said.contains("cannot be read to its end") && (100..=1_001).contains(&line),
            "{said}"
        );
    }
    let said = complaint(&[&bytes[..], b"more"].concat());
    assert!(said.contains("cannot be read to its end"), "{said}");
}

#[test]
fn a_trace_without_turns_is_no_experiment() {
    let mut nothing = GzEncoder::new(Vec::new(), Compression::fast());
    nothing.write_all(b"").unwrap();
    for bytes in [
        &b""[..],
        b"\n\n",
        &nothing.finish().unwrap(),
        b"{\"meta\":{\"bs\":4}}\n",
    ] {
        let said = complaint(bytes);
        assert!(said.contains("the trace has no turns"), "{said}");
    }
    let turns = |turns| {
        let common = [
            "sim",
            "cache",
            "--trace",
            "gen:wildchat:1",
            "--capacity-tokens",
            "10",
            "--xi-ms",
            "1",
        ];
        tailroute(&[&common[..], &["--turns", turns]].concat())
            .status
            .code()
    };
    assert_eq!((turns("0"), turns("1")), (Some(2), Some(0)));
}

/// A pipe can be read only once: block size and turns come from one pass.
#[test]
fn blocks_are_shared_from_a_pipe_too() {
    let command = format!(
        "printf '%s\\n' '{}' | '{}' sim cache --shared --json --xi-ms 1 --capacity-tokens 10000 --trace /dev/stdin",
        GOOD[2].1,
        env!("CARGO_BIN_EXE_tailroute-lab")
    );
    let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report[0]["turns"], &report[0]["sum_uncached"]),
        (&1.into(), &1024.into())
    );
}
