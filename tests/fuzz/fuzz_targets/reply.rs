//! Any answer of a worker, in any chunks: what is read and hashed of it does not depend on how it was split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::fingerprint::{Chain, ChainBuilder, Field};
use protocol::reply::ReplyBuilder;
use protocol::api::Endpoint;
use protocol::watch::{ResponseReport, Watch};

fn read<'a>(endpoint: Endpoint, chunks: impl Iterator<Item = &'a [u8]>, kind: &str) -> (Option<Chain>, ResponseReport, bool, bool, u64) {
    let mut prompt = ChainBuilder::new("model", None).reply();
    prompt.field(Field::Text);
    let (mut watch, mut reply) = (Watch::new(endpoint, Some(kind), false), ReplyBuilder::at(endpoint, prompt));
    for chunk in chunks {
        watch.push(chunk, |piece| reply.push(piece));
    }
    watch.end(|piece| reply.push(piece));
    let chain = reply.finish().map(ChainBuilder::into_chain);
    (chain, watch.seen(), watch.first_token, watch.complete, watch.passed.events)
}

fuzz_target!(|input: (u8, u8, bool, &[u8])| {
    let (endpoint, size, streamed, answer) = input;
    let endpoint = match endpoint % 4 {
        0 => Endpoint::Chat,
        1 => Endpoint::Messages,
        2 => Endpoint::Responses,
        _ => Endpoint::Generate,
    };
    let kind = if streamed { "text/event-stream" } else { "application/json" };
    let whole = read(endpoint, std::iter::once(answer).filter(|answer| !answer.is_empty()), kind);
    let split = read(endpoint, answer.chunks(1 + usize::from(size)), kind);
    assert_eq!(whole, split);
});
