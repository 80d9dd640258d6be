use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;

use policy::fingerprint::{Chain, ChainBuilder};
use policy::units::Tokens;
use proptest::prelude::*;
use simulator::trace::{Format, Turn};

use super::memory::Memory;
use super::numbers::{BLOCK_TOKENS, Line, Numbers};
use super::*;
use simulator::trace_file::TraceFile;

mod fleet_lines;

/// A chat, fingerprinted as on the request path, with four bytes per token.
struct Chat(Vec<(&'static str, String)>);

impl Chat {
    fn chain(&self) -> (Chain, u64) {
        let mut builder = ChainBuilder::new("m", None);
        for (role, text) in &self.0 {
            builder.begin_message(role);
            builder.push(text.as_bytes());
            builder.end_message();
        }
        let units = builder.bytes();
        (builder.into_chain(), units)
    }

    fn record(&self, conversation: u64, response: u64) -> Record<'static> {
        let (prompt, units) = self.chain();
        record(Some(conversation), prompt, units, [units / 4, response])
    }
}

fn record(conversation: Option<u64>, prompt: Chain, units: u64, tokens: [u64; 2]) -> Record<'static> {
    Record {
        conversation,
        class: "".into(),
        model: "".into(),
        objective: Millis(500.0),
        prompt: Cow::Owned(prompt),
        units,
        reply: None,
        tokens,
        counted: true,
        worker: "w".into(),
        ttft: Millis(12.345_678),
        whole: false,
        took: Millis(34.5),
        predicted_ttft: Millis(10.0),
        predicted_cached: Tokens(0),
        reported_cached: None,
        outcome: "ok".into(),
    }
}

fn text(seed: u64, bytes: usize) -> String {
    (0..bytes)
        .map(|at| char::from(b'a' + ((seed + at as u64 * 7) % 26) as u8))
        .collect()
}

fn ids(line: &Line) -> Vec<u64> {
    let pairs = line.block_runs.chunks_exact(2);
    pairs.flat_map(|pair| pair[0]..pair[0] + pair[1]).collect()
}

fn shared(a: &Line, b: &Line) -> usize {
    ids(a).iter().zip(ids(b)).take_while(|(a, b)| **a == *b).count()
}

/// Counts of turns by outcome.
#[derive(Debug, Default)]
struct Counted(Mutex<HashMap<String, u64>>);

impl CaptureObserver for Counted {
    fn count(&self, outcome: &str, turns: u64) {
        *self.0.lock().entry(outcome.to_owned()).or_default() += turns;
    }

    fn restarted(&self) {}
}

impl Counted {
    fn get(&self, outcome: &str) -> u64 {
        self.0.lock().get(outcome).copied().unwrap_or_default()
    }
}

fn start(path: &Path, max_bytes: usize) -> (Capture, Arc<Counted>) {
    let counted = Arc::<Counted>::default();
    let counters: Arc<dyn CaptureObserver> = Arc::<Counted>::clone(&counted);
    (
        Capture::start(&settings(path, max_bytes), counters).unwrap(),
        counted,
    )
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

fn settings(path: &Path, max_bytes: usize) -> config::Capture {
    config::Capture {
        path: path.to_owned(),
        max_bytes: NonZeroUsize::new(max_bytes).unwrap(),
    }
}

fn read(path: &Path) -> Vec<Turn> {
    TraceFile::open(path, Format::Auto)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn a_conversations_next_turn_continues_its_blocks_and_counts_its_history() {
    let mut numbers = Numbers::default();
    let mut chat = Chat(vec![("user", text(1, 4000))]);
    let first = numbers.line(1.0, &chat.record(7, 50));
    assert_eq!((first.conv, first.turn, first.history_tokens), (0, 0, 0));
    assert_eq!(
        ids(&first).len() as u64,
        first.prompt_tokens / u64::from(BLOCK_TOKENS)
    );
    assert_eq!(first.block_runs.len(), 2, "new blocks are one run");
    chat.0.push(("assistant", text(2, 200)));
    chat.0.push(("user", text(3, 1000)));
    let second = numbers.line(2.0, &chat.record(7, 50));
    assert_eq!((second.conv, second.turn), (0, 1));
    assert_eq!(shared(&first, &second), ids(&first).len());
    assert_eq!(
        second.history_tokens, first.prompt_tokens,
        "the reply's text was not seen"
    );
}

#[test]
fn a_reply_that_was_seen_is_history_of_the_next_turn() {
    let mut numbers = Numbers::default();
    let mut builder = ChainBuilder::new("m", None);
    builder.begin_message("user");
    builder.push(text(1, 4000).as_bytes());
    builder.end_message();
    let mut reply = builder.reply();
    reply.push(text(2, 400).as_bytes());
    reply.end_message();
    let units = builder.bytes();
    let mut first = record(Some(1), builder.into_chain(), units, [1000, 100]);
    first.reply = Some(Cow::Borrowed(reply.chain()));
    numbers.line(0.0, &first);
    let next = Chat(vec![
        ("user", text(1, 4000)),
        ("assistant", text(2, 400)),
        ("user", text(3, 400)),
    ]);
    let second = numbers.line(1.0, &next.record(1, 10));
    assert_eq!(second.history_tokens, 1100);
}

#[test]
fn a_shared_beginning_is_the_same_blocks_however_long_the_prompts_are() {
    let mut numbers = Numbers::default();
    let system = text(9, 3000);
    let prompt = |seed, bytes| Chat(vec![("system", system.clone()), ("user", text(seed, bytes))]);
    let mut short = prompt(1, 300).record(1, 5);
    short.tokens[0] = 830;
    let mut long = prompt(2, 9000).record(2, 5);
    long.tokens[0] = 2711;
    let (short, long) = (numbers.line(0.0, &short), numbers.line(1.0, &long));
    let system_blocks = (750 - 64) / u64::from(BLOCK_TOKENS);
    assert!(
        shared(&short, &long) as u64 >= system_blocks,
        "{short:?} {long:?}"
    );
    assert_eq!(
        (long.history_tokens, long.conv),
        (0, 1),
        "another's words are no history"
    );
}

#[test]
fn neither_text_nor_hashes_of_it_are_written() {
    let mut numbers = Numbers::default();
    let chat = Chat(vec![("user", "a secret plan ".repeat(100))]);
    let mut record = chat.record(xxhash_rust::xxh3::xxh3_64(b"alice"), 5);
    record.model = "llama".into();
    let line = numbers.line(0.0, &record);
    assert!(ids(&line).iter().all(|id| *id < 100) && line.conv == 0);
    let text = serde_json::to_string(&line).unwrap();
    assert!(!text.contains("secret") && !text.contains("alice"), "{text}");
}

#[test]
fn models_that_clients_invent_end_in_one() {
    let mut numbers = Numbers::default();
    let mut model = |name: String| {
        let mut record = Chat(vec![("user", text(1, 40))]).record(1, 1);
        record.model = name.into();
        numbers.line(0.0, &record).model
    };
    let names: std::collections::BTreeSet<_> = (0..2000).map(|at| model(format!("model-{at}"))).collect();
    assert!(names.len() <= 257 && names.contains("other"));
    assert_eq!(model("x".repeat(65)), "other");
    assert_eq!(model("model-3".to_owned()), "model-3");
}

#[test]
fn a_capture_is_a_trace_sorted_by_arrival_whenever_its_turns_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.jsonl");
    let runtime = runtime();
    let (capture, turns) = start(&path, 1 << 20);
    let slips: Vec<_> = (0..5)
        .map(|at| capture.begin(Millis(f64::from(at) * 100.0)))
        .collect();
    let given_up = capture.begin(Millis(50.0));
    for (at, slip) in slips.into_iter().enumerate().rev() {
        slip.hand_in(Chat(vec![("user", text(at as u64, 1000))]).record(at as u64, 3));
    }
    drop(given_up);
    runtime.block_on(capture.flush());
    let read = read(&path);
    let times: Vec<f64> = read.iter().map(|turn| turn.ts_s).collect();
    assert_eq!(times, [0.0, 0.1, 0.2, 0.3, 0.4]);
    assert_eq!(turns.get("written"), 5);
}

#[test]
fn a_file_that_is_full_makes_room_and_both_are_whole_traces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.jsonl");
    std::fs::write(&path, "what an earlier run left").unwrap();
    let runtime = runtime();
    let (capture, _) = start(&path, 4000);
    let before = folder.path().join("capture.jsonl.1");
    assert_eq!(
        std::fs::read_to_string(&before).unwrap(),
        "what an earlier run left"
    );
    for at in 0..100u64 {
        let slip = capture.begin(Millis(at as f64));
        slip.hand_in(Chat(vec![("user", text(at, 1000))]).record(at % 7, 3));
        runtime.block_on(capture.flush());
    }
    for file in [&path, &before] {
        assert!(!read(file).is_empty());
        assert!(std::fs::metadata(file).unwrap().len() <= 4000);
    }
    assert_eq!(read(&path).last().unwrap().ts_s, 0.099);
}

#[test]
fn a_path_that_cannot_be_written_is_an_error_at_the_start() {
    let error = Capture::start(
        &settings(Path::new("/nowhere/at/all"), 4000),
        Arc::<Counted>::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot write a capture to /nowhere/at/all (capture.path)"
    );
}

#[test]
fn a_full_queue_drops_and_counts_and_never_waits() {
    let (queue, _nobody_reads) = mpsc::channel(1);
    let turns = Arc::<Counted>::default();
    let capture = Capture(Arc::new(CaptureState {
        queue,
        open: Arc::default(),
        sequence: AtomicU64::new(0),
        counters: Arc::<Counted>::clone(&turns),
        fleet: Mutex::default(),
    }));
    for _ in 0..3 {
        let slip = capture.begin(Millis(0.0));
        slip.hand_in(Chat(vec![("user", text(1, 100))]).record(1, 1));
    }
    assert_eq!(turns.get("dropped"), 2);
    assert!(capture.0.open.lock().is_empty());
}

#[test]
fn a_turn_that_is_very_late_is_counted_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.jsonl");
    let runtime = runtime();
    let (capture, turns) = start(&path, 1 << 20);
    let chat = Chat(vec![("user", text(1, 100))]);
    for arrived in [9000.0, 8000.0, 1000.0] {
        capture.begin(Millis(arrived)).hand_in(chat.record(1, 1));
        runtime.block_on(capture.flush());
    }
    let times: Vec<f64> = read(&path).iter().map(|turn| turn.ts_s).collect();
    assert_eq!(times, [9.0, 9.0], "a little late is at the same time");
    assert_eq!(turns.get("late"), 1);
}

fn turns_of(trace: &[u8]) -> Vec<Turn> {
    let mut reader = simulator::trace::Reader::new(Format::Capture);
    let lines = str::from_utf8(trace).unwrap().lines();
    lines.filter_map(|line| reader.line(line).unwrap()).collect()
}

#[test]
fn a_memory_is_the_trace_that_a_file_would_be_whenever_its_turns_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.jsonl");
    let runtime = runtime();
    let ((file, _), memory) = (start(&path, 1 << 20), Memory::new(1 << 20));
    let times = (0..40u64).map(|at| Millis(at as f64 * 10.0));
    let slips: Vec<_> = times.map(|arrived| (arrived, file.begin(arrived))).collect();
    for (at, (arrived, slip)) in (0..40).rev().zip(slips.into_iter().rev()) {
        let mut chat = Chat(vec![("system", text(9, 2000)), ("user", text(at % 3, 700))]);
        chat.0.extend((0..at / 7).map(|turn| ("user", text(turn, 900))));
        let mut record = chat.record(at % 5, 30);
        let (said, _) = Chat(vec![("assistant", text(at % 3, 600))]).chain();
        record.reply = (at % 4 == 1).then_some(Cow::Owned(said));
        record.conversation = record.conversation.filter(|_| at % 9 != 2);
        (record.class, record.model) = ("batch".into(), "m".into());
        (record.reported_cached, record.counted) = ((at % 2 == 0).then_some(at), at % 3 == 0);
        assert!(memory.write(arrived, &record));
        slip.hand_in(record);
    }
    runtime.block_on(file.flush());
    let written = std::fs::read_to_string(&path).unwrap();
    let held = String::from_utf8(memory.newest(usize::MAX)).unwrap();
    let turns = |trace: &str| trace.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(turns(&held), turns(&written));
    assert_eq!(memory.size().0, 40);
    let newest = String::from_utf8(memory.newest(7)).unwrap();
    assert_eq!(
        turns(&newest),
        turns(&written)[33..],
        "numbered as those before them say"
    );
}

#[test]
fn what_is_held_of_a_turn_is_all_of_it_and_takes_what_it_says() {
    let mut full = Chat(vec![("user", text(1, 3000))]).record(7, 5);
    let (said, _) = Chat(vec![("assistant", text(2, 600))]).chain();
    full.reply = Some(Cow::Owned(said));
    (full.class, full.model, full.reported_cached) = ("batch".into(), "m".into(), Some(64));
    full.whole = true;
    let mut bare = record(None, Chain::new(), 0, [0, 0]);
    bare.counted = false;
    let arrival = |at_us| ArrivalOrder { at_us, sequence: 9 };
    let mut held = Vec::new();
    for (at, turn) in (0..).zip([&full, &bare]) {
        let before = held.len();
        turn.write(arrival(at), &mut held);
        assert_eq!(held.len() - before, turn.size());
    }
    let mut rest = &held[..];
    for (at, turn) in (0..).zip([full, bare]) {
        let (read_arrival, read) = Record::read(&mut rest).unwrap();
        assert_eq!(read_arrival, arrival(at));
        let keys = |chain: &Chain| (chain.hashes().to_vec(), chain.ends().to_vec());
        assert_eq!(keys(&read.prompt), keys(&turn.prompt));
        assert_eq!(read.reply.as_deref().map(keys), turn.reply.as_deref().map(keys));
        // The encoding does not record which keys end messages.
        let (prompt, reply) = (turn.prompt.clone(), turn.reply.clone());
        assert_eq!(
            Record {
                prompt,
                reply,
                ..read
            },
            turn
        );
    }
    assert!(Record::read(&mut rest).is_none());
}

#[test]
fn what_a_memory_holds_is_bounded_and_the_oldest_go() {
    let most = 64 << 10;
    let memory = Memory::new(most);
    for at in 0..2000u64 {
        let record = Chat(vec![("user", text(at, 40 * (at as usize % 90)))]).record(at, 3);
        assert!(memory.write(Millis(at as f64), &record));
        assert!(memory.size().1 <= most);
    }
    let held = turns_of(&memory.newest(usize::MAX));
    assert_eq!(held.len(), memory.size().0);
    let newest: Vec<f64> = (2000 - held.len()..2000).map(|at| at as f64 / 1e3).collect();
    assert_eq!(held.iter().map(|turn| turn.ts_s).collect::<Vec<_>>(), newest);
    assert!(memory.size().1 > most * 9 / 10, "and no more than they have to");
}

#[test]
fn a_turn_that_would_leave_no_room_for_others_is_left_out() {
    let memory = Memory::new(64 << 10);
    let short = Chat(vec![("user", text(1, 100))]).record(1, 3);
    assert!(memory.write(Millis(1.0), &short));
    let mut long = short.clone();
    long.class = "c".repeat(40 << 10).into();
    assert!(!memory.write(Millis(2.0), &long));
    assert!(memory.write(Millis(3.0), &short));
    assert_eq!((memory.size().0, memory.left_out()), (2, 1));
    let times: Vec<f64> = turns_of(&memory.newest(9)).iter().map(|turn| turn.ts_s).collect();
    assert_eq!(times, [0.001, 0.003]);
    let mut named = short;
    named.model = "m".repeat(1 << 20).into();
    assert!(memory.write(Millis(4.0), &named), "a long name is held by none");
    assert!(
        String::from_utf8(memory.newest(1))
            .unwrap()
            .contains(r#""model":"other""#)
    );
}

#[test]
fn a_worker_that_counts_more_tokens_than_there_can_be_is_not_believed() {
    let mut numbers = Numbers::default();
    let mut record = Chat(vec![("user", text(1, 1000))]).record(1, 1);
    record.tokens[0] = 1 << 32;
    let line = numbers.line(0.0, &record);
    assert_eq!(line.prompt_tokens, record.units + (1 << 20));
    assert_eq!(
        ids(&line).len() as u64,
        line.prompt_tokens / u64::from(BLOCK_TOKENS)
    );
    let mut picture = Chat(vec![("user", text(2, 1000))]).record(2, 1);
    picture.tokens[0] = 70_000;
    assert_eq!(numbers.line(1.0, &picture).prompt_tokens, 70_000);
}

/// A client's next turn.
#[derive(Clone, Debug)]
enum Move {
    Say(usize),
    Repeat,
    Shorten,
    Restart(u64),
}

fn moves() -> impl Strategy<Value = (u64, Move)> {
    let what = prop_oneof![
        4 => (1usize..3000).prop_map(Move::Say),
        1 => Just(Move::Repeat),
        1 => Just(Move::Shorten),
        1 => (0u64..3).prop_map(Move::Restart),
    ];
    (0u64..4, what)
}

proptest! {
    /// The reader accepts every line, for any sequence of turns and any memory size.
    #[test]
    fn every_line_is_a_turn_that_the_reader_takes(moves in prop::collection::vec(moves(), 1..60), keys in 1usize..60, ratio in 1u64..9) {
        let few = NonZeroUsize::new(keys).unwrap();
        let mut numbers = Numbers::remembering(NonZeroUsize::new(2).unwrap(), few);
        let mut chats: Vec<Vec<(&'static str, String)>> = vec![Vec::new(); 4];
        let mut reader = simulator::trace::Reader::new(Format::Capture);
        reader.line(&format!(r#"{{"meta":{{"capture":true,"bs":{BLOCK_TOKENS}}}}}"#)).unwrap();
        for (at, (conversation, what)) in moves.into_iter().enumerate() {
            let chat = &mut chats[conversation as usize];
            match what {
                Move::Say(bytes) => chat.push(("user", text(at as u64, bytes))),
                Move::Repeat => {}
                Move::Shorten => _ = chat.pop(),
                Move::Restart(seed) => *chat = vec![("system", text(seed, 900))],
            }
            let (prompt, units) = Chat(chat.clone()).chain();
            // Token ratios vary, as with real tokenizers.
            let tokens = units / ratio + at as u64 % 5;
            let line = numbers.line(at as f64, &record(Some(conversation), prompt, units, [tokens, 7]));
            let json = serde_json::to_string(&line).unwrap();
            let turn = reader.line(&json).map_err(|error| TestCaseError::fail(format!("{error}: {json}")))?;
            let turn = turn.unwrap();
            prop_assert_eq!(turn.input_tokens(), Tokens(tokens));
        }
    }
}
