//! Hostile gateways: their influence on the router's memory.

#![expect(clippy::disallowed_types, reason = "the gateway is no worker")]

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::Request;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use picker::wire;
use serde_json::json;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::within;
use tokio::sync::mpsc;
use tonic::Code;

use crate::gateway::{Gateway, metadata};
use crate::start;

type Pieces = mpsc::UnboundedSender<Bytes>;
type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// A connection that sends arbitrary bytes as the body of a stream.
struct Raw {
    client: Client<HttpConnector, Body>,
    picker: SocketAddr,
}

impl Raw {
    fn to(picker: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new());
        let client = client.clone().http2_only(true).build(HttpConnector::new());
        Self { client, picker }
    }

    async fn stream(&self) -> (Pieces, http::Response<Incoming>) {
        let (pieces, mut receiver) = mpsc::unbounded_channel();
        let body = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let body = StreamBody::new(body.map(|piece| Ok(Frame::data(piece))));
        let request = Request::post(format!("http://{}{}", self.picker, wire::PATH))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = request.body(body.boxed_unsync()).unwrap();
        (pieces, within(self.client.request(request)).await.unwrap())
    }
}

fn prefix(length: u32) -> Bytes {
    [&[0][..], &length.to_be_bytes()].concat().into()
}

async fn status(answer: http::Response<Incoming>) -> i32 {
    let head = answer.headers().get("grpc-status").cloned();
    let body = within(answer.into_body().collect()).await.unwrap();
    let trailer = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
    let status = trailer.or(head.as_ref()).expect("a status");
    status.to_str().unwrap().parse().unwrap()
}

/// Returns the resident memory of this process, in MiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4 / 1024
}

#[tokio::test]
async fn an_overlong_message_ends_its_stream_and_declared_lengths_take_no_memory() {
    let (fleet, _) = start(vec![quick()], |_| {}).await;
    let raw = Raw::to(fleet.router.picker_address.unwrap());
    let (pieces, answer) = raw.stream().await;
    pieces.send(prefix(u32::MAX)).unwrap();
    assert_eq!(status(answer).await, Code::OutOfRange as i32);
    let most = fleet.router.parts().state.config.limits.max_body_bytes.get() as u32;
    let before = resident();
    let mut streams = Vec::new();
    for _ in 0..60 {
        let (pieces, answer) = raw.stream().await;
        pieces.send(prefix(most)).unwrap();
        pieces.send(Bytes::from_static(&[0x22; 1024])).unwrap();
        streams.push((pieces, answer));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < u64::from(most >> 20) * 10, "{grown} MiB");
    drop(streams);
    fleet.at_rest().await;
}

#[tokio::test]
async fn incomplete_messages_count_against_the_bound_on_unread_bytes() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.limits.max_body_bytes = (1 << 20).try_into().unwrap();
        config.limits.max_unread_bytes = (2 << 20).try_into().unwrap();
    })
    .await;
    let raw = Raw::to(fleet.router.picker_address.unwrap());
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (pieces, answer) = raw.stream().await;
        pieces.send(prefix(1 << 20)).unwrap();
        pieces.send(vec![0x22; 800 << 10].into()).unwrap();
        streams.push((pieces, answer));
    }
    // Two of the four have room, whichever they are.
    let frames = streams.iter_mut().map(|(_, answer)| answer.body_mut().frame());
    let mut frames: FuturesUnordered<_> = frames.collect();
    for _ in 0..2 {
        let frame = within(frames.next()).await.unwrap().unwrap().unwrap();
        let trailers = frame.into_trailers().expect("the end");
        assert_eq!(
            trailers["grpc-status"],
            (Code::ResourceExhausted as i32).to_string().as_str()
        );
    }
    let third = tokio::time::timeout(std::time::Duration::from_millis(500), frames.next()).await;
    assert!(third.is_err(), "{third:?}");
    drop(frames);
    drop(streams);
    within(async { while gateway.carry(&[], &ask("hi", json!({}))).await.status != 200 {} }).await;
    fleet.at_rest().await;
}

#[tokio::test]
async fn overlong_heads_and_metadata_are_rejected_before_decoding() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    let noted = metadata("n", "m", crate::gateway::text(&"a".repeat(300 << 10)));
    let mut stream = gateway.open(("GET", "/v1/models"), &[], true, Some(noted)).await;
    assert_eq!(stream.told().await.unwrap_err().code(), Code::OutOfRange);
    let empty = vec![("", ""); 200_000];
    let mut stream = gateway.open(("GET", "/v1/models"), &empty, true, None).await;
    assert_eq!(stream.told().await.unwrap_err().code(), Code::OutOfRange);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_gateway_that_does_not_read_holds_little_memory_and_delays_no_other() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.limits.max_body_bytes = (1 << 20).try_into().unwrap();
        config.limits.max_unread_bytes = (16 << 20).try_into().unwrap();
    })
    .await;
    let mut stream = gateway.open(("GET", "/v1/models"), &[], true, None).await;
    stream.named().await;
    stream.answer(200, "application/json", false, None);
    let before = resident();
    let piece = Bytes::from(vec![b'a'; 900 << 10]);
    for _ in 0..400 {
        stream.say(wire::ProcessingRequest {
            request: Some(wire::RequestPart::ResponseBody(wire::HttpBody {
                body: piece.clone(),
                end_of_stream: false,
            })),
            ..wire::ProcessingRequest::default()
        });
    }
    let picker = fleet.router.picker_address.unwrap();
    for _ in 0..20 {
        let other = Gateway::connect(picker);
        assert_eq!(other.carry(&[], &ask("hi", json!({}))).await.status, 200);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 100, "{grown} MiB of 360");
}
