//! Keys, prompts and responses are never logged or traced, at the most verbose level, however a request ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Key;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use operator::secret::hash;
use parking_lot::Mutex;
use prost::Message as _;
use protocol::tenant::hex;
use serde_json::json;
use tailroute_e2e::client::{self, CHAT, H2};
use tailroute_e2e::fleet::route;
use tailroute_e2e::log::Log;
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Texts that must not appear.
const KEY: &str = "tr-canary-of-the-key-0123456789";
const WRONG_KEY: &str = "tr-canary-of-a-wrong-key";
const PROMPT: &str = "canary in the prompt";
const REPLY: &str = "canary in the reply";
const CANARY: &str = "canary";

/// The traces received by a collector: the number of requests, and the bytes, which contain text in plain form.
#[derive(Clone, Default)]
struct Traced(Arc<Mutex<(usize, Vec<u8>)>>);

impl Traced {
    fn requests(&self) -> usize {
        self.0.lock().0
    }
}

async fn collector() -> (Traced, SocketAddr) {
    const SERVER: i32 = 2;
    let traced = Traced::default();
    let mut upstream = Upstream::start().await;
    let (address, takes) = (upstream.address, traced.clone());
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next().await;
            let message = ExportTraceServiceRequest::decode(&*exchange.body).unwrap();
            let scopes = message.resource_spans.iter().flat_map(|of| &of.scope_spans);
            let spans = scopes.flat_map(|scope| &scope.spans);
            {
                let mut taken = takes.0.lock();
                taken.0 += spans.filter(|span| span.kind == SERVER).count();
                taken.1.extend(&*exchange.body);
                taken.1.extend(exchange.head.as_bytes());
            }
            exchange.answer("200 OK", "").await;
        }
    });
    (traced, address)
}

fn event(text: &str) -> Vec<u8> {
    let event = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    format!("data: {event}\n\n").into_bytes()
}

#[tokio::test]
async fn neither_keys_nor_prompts_nor_answers_are_logged_at_any_level_or_traced() {
    let log = Log::default();
    log.at("trace").init();

    let (traced, collector) = collector().await;
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        config.keys = vec![Key {
            name: "k".to_owned(),
            digest: hash(KEY.as_bytes()),
            tenant: "k".to_owned(),
            weight: 1.0,
            priority: 0,
            requests: None,
            tokens: None,
            explain: false,
        }];
        config.traces = Some(config::Traces {
            endpoint: format!("http://{collector}").parse().unwrap(),
            protocol: config::OtlpProtocol::Http,
            ca: None,
            headers: http::HeaderMap::new(),
            headers_file: None,
            service_name: "tailroute-test".to_owned(),
            keep_sampled: true,
            slowest_share: 0.0,
            share: 1.0,
            queue: 1000,
            timeout: Duration::from_secs(30),
        });
    })
    .await;
    let address = router.address;
    let bearer = format!("Bearer {KEY}");
    let own = [("authorization", bearer.as_str())];
    let body = ask(PROMPT, json!({ "stream": true })).to_string();

    // A complete stream, and one that breaks off.
    for breaks in [false, true] {
        let respond = async {
            let mut exchange = upstream.next().await;
            exchange.begin_events().await;
            exchange.chunk(&event(REPLY)).await;
            if breaks {
                exchange
                    .chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"canary, cut")
                    .await;
                exchange.reset();
            } else {
                exchange.chunk(b"data: [DONE]\n\n").await;
                exchange.end().await;
            }
        };
        let (answer, ()) = tokio::join!(client::open(address, "POST", CHAT, &own, body.clone()), respond);
        let whole = answer.unwrap().whole().await;
        assert_eq!(whole.clean, !breaks);
    }
    // An engine that fails with the prompt in its error.
    let respond = async {
        let exchange = upstream.next().await;
        exchange
            .answer(
                "500 Internal Server Error",
                &json!({ "error": PROMPT }).to_string(),
            )
            .await;
    };
    let (answer, ()) = tokio::join!(client::open(address, "POST", CHAT, &own, body.clone()), respond);
    assert_eq!(answer.unwrap().status, 500);
    // Rejected requests: a wrong key, invalid JSON, an unknown model.
    let wrong = format!("Bearer {WRONG_KEY}");
    let wrong = client::call(address, "POST", CHAT, &[("authorization", &wrong)], body.clone()).await;
    assert_eq!(wrong.status, 401);
    let broken = client::call(address, "POST", CHAT, &own, format!("{{\"messages\": \"{PROMPT}")).await;
    assert_eq!(broken.status, 400);
    let h2 = H2::connect(address).await;
    let _ = h2.post(CHAT, body.clone()).await;

    let text = log.text();
    assert!(
        text.contains("chosen") && text.contains("ended"),
        "it does log: {} bytes",
        text.len()
    );
    let leaks: Vec<&str> = text.lines().filter(|line| line.contains(CANARY)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
    // Traces of the two streams, the failure, and the invalid body, which all had a valid key.
    until("their traces have come", || traced.requests() >= 4).await;
    let traces = String::from_utf8_lossy(&traced.0.lock().1).into_owned();
    assert!(traces.contains("tailroute.worker"), "they do say something");
    assert!(!traces.contains(CANARY), "{traces}");
    let config = format!("{:?}", router.parts().state.config);
    assert!(
        config.contains("sha256:"),
        "of a hash only the beginning is shown: {config}"
    );
    assert!(!config.contains(&hex(&hash(KEY.as_bytes()).0)));
}
