//! Any answer of a worker, in any chunks: what is read of it does not depend on how it was split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailroute::path::watch::Watch;

fn read<'a>(chunks: impl Iterator<Item = &'a [u8]>, kind: &str) -> (String, bool, bool, bool, u64) {
    let (mut watch, mut text) = (Watch::new(Some(kind), false), String::new());
    chunks.for_each(|chunk| watch.push(chunk, |said| text.push_str(said)));
    watch.end(|said| text.push_str(said));
    (text, watch.first_token, watch.complete, watch.plain_reply, watch.token_events)
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, streamed, answer) = input;
    let kind = if streamed { "text/event-stream" } else { "application/json" };
    let whole = read(std::iter::once(answer).filter(|answer| !answer.is_empty()), kind);
    let split = read(answer.chunks(1 + usize::from(size)), kind);
    assert_eq!(whole, split);
});
