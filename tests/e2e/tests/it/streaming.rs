//! Streamed responses: each chunk is forwarded as it arrives, whatever part of an event it is.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, Answer, CHAT, H2, code_of, events};
use tailroute_e2e::fleet::{at_rest, metrics, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::within;

/// The end marker of a complete stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A stream as vLLM sends it, with characters of one to four bytes, raw and escaped.
const STREAM: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    ": a comment\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\\u00e9\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" é漢🙂\"}}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
    "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n",
    "data: [DONE]\n\n",
);

struct Stage {
    upstream: Upstream,
    router: Server,
}

impl Stage {
    async fn set() -> Self {
        let upstream = Upstream::start().await;
        let router = route(&[upstream.address], |_| {}).await;
        Self { upstream, router }
    }

    /// Begins a stream. Returns both of its ends.
    async fn begin(&mut self, path: &str) -> (Answer, Exchange) {
        let body = ask("hello", json!({ "stream": true })).to_string();
        let request = client::open(self.router.address, "POST", path, &[], body);
        let respond = async {
            let mut exchange = self.upstream.next().await;
            exchange.begin_events().await;
            exchange
        };
        let (answer, exchange) = tokio::join!(request, respond);
        (answer.unwrap(), exchange)
    }
}

#[tokio::test]
async fn each_chunk_is_forwarded_as_it_arrives() {
    let mut stage = Stage::set().await;
    for path in [CHAT, "/v1/completions", "/v1/responses"] {
        // The response was returned before any chunk was sent, so its head was forwarded.
        let (mut answer, mut exchange) = stage.begin(path).await;
        assert_eq!(answer.status, 200);
        for k in 0..20 {
            let chunk =
                format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{k}\"}}}}]}}\n\n");
            exchange.chunk(chunk.as_bytes()).await;
            // The next chunk is not sent before this one has arrived.
            assert_eq!(answer.bytes(chunk.len()).await, chunk.as_bytes());
        }
        exchange.chunk(DONE).await;
        exchange.end().await;
        let rest = answer.whole().await;
        assert!(rest.clean && rest.body == DONE);
    }
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn over_http2_chunks_are_forwarded_at_once_and_a_broken_stream_reports_it() {
    let mut stage = Stage::set().await;
    let h2 = H2::connect(stage.router.address).await;
    for breaks in [false, true] {
        let body = ask("hello", json!({ "stream": true })).to_string();
        let respond = async {
            let mut exchange = stage.upstream.next().await;
            exchange.begin_events().await;
            exchange
        };
        let (answer, mut exchange) = tokio::join!(h2.post(CHAT, body), respond);
        let mut answer = answer.into_body();
        for k in 0..20 {
            let chunk = format!("data: {k}\n\n");
            exchange.chunk(chunk.as_bytes()).await;
            let frame = within(answer.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), chunk);
        }
        if breaks {
            exchange.reset();
            let event = within(answer.frame())
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap();
            assert_eq!(code_of(&events(&event)[0]), "worker_failed");
            assert!(within(answer.frame()).await.unwrap().is_err());
        } else {
            exchange.chunk(DONE).await;
            exchange.end().await;
            assert_eq!(within(answer.collect()).await.unwrap().to_bytes(), DONE);
        }
    }
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_pipelined_request_does_not_delay_the_stream_before_it() {
    let mut stage = Stage::set().await;
    let body = ask("hello", json!({ "stream": true })).to_string();
    let length = format!("content-length: {}", body.len());
    let one = request(&format!("POST {CHAT}"), &[&length], &body);
    let mut wire = Wire::connect(stage.router.address).await;
    wire.write(&[&one[..], &one].concat()).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin_events().await;
    for _ in 0..5 {
        exchange.chunk(b"data: 1\n\n").await;
        wire.read_past(b"data: 1\n\n").await;
    }
    exchange.chunk(DONE).await;
    exchange.end().await;
    wire.read_past(b"0\r\n\r\n").await;
    stage.upstream.next().await.answer("200 OK", "{}").await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_stream_split_at_any_byte_is_forwarded_unchanged_and_parsed() {
    let mut stage = Stage::set().await;
    let bytes = STREAM.as_bytes();
    for at in 0..=bytes.len() {
        let (mut answer, mut exchange) = stage.begin(CHAT).await;
        let (head, tail) = bytes.split_at(at);
        let mut seen = Vec::new();
        if !head.is_empty() {
            exchange.chunk(head).await;
            seen = answer.bytes(head.len()).await;
        }
        if !tail.is_empty() {
            exchange.chunk(tail).await;
        }
        exchange.end().await;
        let rest = answer.whole().await;
        seen.extend_from_slice(&rest.body);
        assert!(rest.clean && seen == bytes, "split at {at}");
    }
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    let streams = (bytes.len() + 1) as f64;
    let tokens = |kind| page.sum("tailroute_prompt_tokens_total", &[("kind", kind)]);
    assert_eq!(
        (tokens("all"), tokens("reported_cached")),
        (9.0 * streams, 8.0 * streams)
    );
    assert_eq!(
        page.sum("tailroute_requests_total", &[("outcome", "ok")]),
        streams
    );
    assert_eq!(
        page.sum("tailroute_time_to_first_token_seconds_count", &[]),
        streams
    );
}

#[tokio::test]
async fn a_stream_is_forwarded_byte_by_byte() {
    let mut stage = Stage::set().await;
    let (mut answer, mut exchange) = stage.begin(CHAT).await;
    for byte in STREAM.as_bytes() {
        exchange.chunk(&[*byte]).await;
        assert_eq!(answer.bytes(1).await, [*byte]);
    }
    exchange.end().await;
    assert!(answer.whole().await.clean);
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    assert_eq!(page.sum("tailroute_prompt_tokens_total", &[("kind", "all")]), 9.0);
}

#[tokio::test]
async fn a_stream_without_its_end_marker_is_not_terminated() {
    let mut stage = Stage::set().await;
    let (answer, mut exchange) = stage.begin(CHAT).await;
    let cut = STREAM.find("data: [DONE]").unwrap();
    exchange.chunk(&STREAM.as_bytes()[..cut]).await;
    exchange.end().await;
    let answer = answer.whole().await;
    assert!(!answer.clean && answer.body.starts_with(&STREAM.as_bytes()[..cut]));
    assert_eq!(code_of(&events(&answer.body[cut..])[0]), "worker_failed");

    // Some engines send a finish reason but no end marker.
    let (answer, mut exchange) = stage.begin(CHAT).await;
    let finished = b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    exchange.chunk(finished).await;
    exchange.end().await;
    let answer = answer.whole().await;
    assert!(answer.clean && answer.body == finished[..]);
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    assert_eq!(
        page.sum("tailroute_requests_total", &[("outcome", "broken")]),
        1.0
    );
}

#[tokio::test]
async fn a_stream_broken_within_a_line_ends_the_line_before_the_error() {
    let mut stage = Stage::set().await;
    let (mut answer, mut exchange) = stage.begin(CHAT).await;
    let token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" a\"}}]}\n\n";
    let mut came = Vec::new();
    for piece in [token, token, token, &token[..40]] {
        exchange.chunk(piece.as_bytes()).await;
        came.extend(answer.bytes(piece.len()).await);
    }
    exchange.reset();
    let rest = answer.whole().await;
    assert!(!rest.clean);
    came.extend_from_slice(&rest.body);
    let events = events(&came);
    assert!(events.iter().all(serde_json::Value::is_object), "{events:?}");
    assert_eq!(code_of(events.last().unwrap()), "worker_failed");
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_applies_backpressure_to_the_worker() {
    const MIB: usize = 1 << 20;
    let mut stage = Stage::set().await;
    let (mut answer, mut exchange) = stage.begin(CHAT).await;
    let data = vec![b'x'; MIB];
    let mut sent = 0;
    // Socket buffers take some chunks; a router that buffered would take all 64.
    while sent < 64
        && tokio::time::timeout(Duration::from_millis(200), exchange.chunk(&data))
            .await
            .is_ok()
    {
        sent += 1;
    }
    assert!(sent < 64, "all of it went somewhere");
    let read = answer.bytes(sent * MIB).await;
    assert!(read.iter().all(|&byte| byte == b'x'));
    drop(answer);
    exchange.hung_up().await;
    at_rest(&stage.router).await;
}
