//! Allocations of reading and looking up a request, counted by the allocator: only what the turn keeps, at any length.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "a global allocator cannot be written without, it only counts and passes on; a test may stop"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use learning::knowledge::{CountedTurn, Knowledge, Match};
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use protocol::api::Endpoint;
use protocol::parse::parse;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system allocator; beside it, a thread-local counter is increased.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: upheld by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: upheld by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn allocations_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.with(Cell::get);
    let result = work();
    (ALLOCATIONS.with(Cell::get) - before, result)
}

/// Returns a chat with `messages` messages of this text, with tools and tool calls.
fn body(messages: usize, text: &str) -> String {
    let text = serde_json::to_string(text).unwrap();
    let user = format!(r#"{{"role":"user","content":[{{"type":"text","text":{text}}}]}}"#);
    let call = format!(r#"{{"id":"c","function":{{"arguments":{text},"name":"f"}}}}"#);
    let assistant = format!(r#"{{"role":"assistant","content":null,"tool_calls":[{call}]}}"#);
    let turns = vec![format!("{user},{assistant}"); messages / 2].join(",");
    format!(
        r#"{{"messages":[{turns}],"model":"m","tools":[{{"a": {text}}}],"cache_salt":"s","session_id":"x"}}"#
    )
}

/// The chain's keys, their ends, the marks of message ends, and the reference count that shares them.
const KEPT: u64 = 4;

#[test]
fn reading_a_request_allocates_only_the_keys_that_the_turn_keeps() {
    let text = "if \"it\" is\twarm\n\\ then \u{e9} costs / nothing ".repeat(40);
    let longest = body(400, &text);
    parse(Endpoint::Chat, longest.as_bytes()).unwrap();
    for messages in [2, 20, 400] {
        let body = body(messages, &text);
        let (spent, parsed) = allocations_of(|| parse(Endpoint::Chat, body.as_bytes()).unwrap());
        assert_eq!(spent, KEPT, "{messages} messages");
        assert!(parsed.fingerprint.chain.len() > messages);
    }
}

#[test]
fn matching_allocates_nothing() {
    let knowledge = Knowledge::new(64 << 20, &[(Tokens(1 << 20), 16); 64], 0.25, Millis(60_000.0));
    let text = "a prefix that some workers hold. ".repeat(40);
    let body = body(400, &text);
    let parsed = parse(Endpoint::Chat, body.as_bytes()).unwrap();
    for worker in (0..64).step_by(3).map(WorkerId) {
        let chain = &parsed.fingerprint.chain;
        knowledge.update(worker, |residency| {
            residency.sent(worker, chain, |bytes| bytes / 4)
        });
    }
    let short = parse(Endpoint::Completions, br#"{"prompt":"x"}"#).unwrap();
    // A counted turn has a position in tokens, to which the next one's scale is pinned.
    knowledge.turn_over(&CountedTurn {
        model: "m",
        worker: WorkerId(0),
        session: None,
        since: 0,
        prompt: &parsed.fingerprint.chain,
        media: &[],
        reply: None,
        goes_on: false,
        cached: None,
        prompt_tokens: 99_999,
        reply_tokens: 1,
        ended: false,
    });
    // The first lookup of a thread allocates buffers that later ones reuse.
    let mut found = Match::default();
    knowledge.look_up_into("m", &parsed.fingerprint, 64, &mut found);
    assert!(found.prompt > Tokens(1000));
    for prompt in [&short.fingerprint, &parsed.fingerprint, &parsed.fingerprint] {
        let (spent, ()) = allocations_of(|| knowledge.look_up_into("m", prompt, 64, &mut found));
        assert_eq!(spent, 0, "{} keys", prompt.chain.len());
        let fresh = knowledge.look_up("m", prompt, 64);
        assert_eq!(
            (found.prompt, &found.resident, &found.mirrored),
            (fresh.prompt, &fresh.resident, &fresh.mirrored)
        );
    }
    assert!(found.resident.iter().any(|tokens| *tokens > Tokens::ZERO));
}
