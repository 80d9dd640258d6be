//! What routing knows of caches and prompts: the account of hits, the tokens of media, and queues that fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, at_rest, route};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;

async fn admin(router: &Server, path: &str) -> Value {
    let answer = client::admin(router.admin_address, "GET", path, &[], None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn stages(page: &Page) -> [f64; 4] {
    ["prompt", "available", "captured", "delivered"]
        .map(|stage| page.sum("tailroute_prompt_cache_tokens_total", &[("stage", stage)]))
}

#[tokio::test]
async fn hits_are_accounted_for_from_the_prompt_to_the_engine() {
    let fleet = Fleet::of(2).await;
    let mut talk = Conversation::new(&words(1, 400));
    let first = fleet.turn(&mut talk, &[("x-request-id", "one")], "hello").await;
    let second = fleet.turn(&mut talk, &[("x-request-id", "two")], "go on").await;
    fleet.at_rest().await;
    let [prompt, available, captured, delivered] = stages(&fleet.metrics().await);
    assert_eq!(prompt as u64, first.prompt + second.prompt);
    assert_eq!(delivered as u64, first.cached + second.cached);
    assert!(
        delivered > 300.0 && captured == available,
        "{captured} of {available}"
    );
    let found = admin(&fleet.router, "/admin/v1/decisions/two").await;
    let decision = &found["decisions"][0];
    assert_eq!(decision["available_tokens"], decision["captured_tokens"]);
    assert_eq!(decision["captured_tokens"], captured as u64);
    assert_eq!(decision["outcome"]["cached_tokens"], second.cached);
    let hits = &admin(&fleet.router, "/admin/v1/slo").await["hits"];
    assert_eq!(hits["prompt_tokens"], prompt as u64);
    assert_eq!(hits["delivered_tokens"], delivered as u64);
    assert_eq!(hits["loss"], "workload");
    let verdict = hits["verdict"].as_str().unwrap();
    assert!(verdict.contains("the workload costs most hits"), "{verdict}");
}

/// Turns without reported cached tokens count in none of the stages.
#[tokio::test]
async fn an_engine_that_does_not_report_cached_tokens_has_no_part_in_the_account() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let body = ask(&words(1, 300), json!({})).to_string();
    for _ in 0..2 {
        let request = client::call(router.address, "POST", CHAT, &[], body.clone());
        let respond = async { upstream.next().await.answer("200 OK", &answer(400)).await };
        assert_eq!(tokio::join!(request, respond).0.status, 200);
    }
    at_rest(&router).await;
    assert_eq!(stages(&tailroute_e2e::fleet::metrics(&router).await), [0.0; 4]);
}

fn answer(prompt: u64) -> String {
    json!({
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "hi" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": prompt, "completion_tokens": 1 },
    })
    .to_string()
}

#[tokio::test]
async fn an_image_counts_by_the_tokens_of_earlier_images() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    for at in 0..3 {
        let image =
            json!({ "type": "image_url", "image_url": { "url": format!("https://example.com/{at}.png") } });
        let text = json!({ "type": "text", "text": format!("What is in picture {at}?") });
        let body = json!({ "model": "sim", "messages": [{ "role": "user", "content": [text, image] }] });
        let request = client::call(router.address, "POST", CHAT, &[], body.to_string());
        let respond = async { upstream.next().await.answer("200 OK", &answer(1219)).await };
        assert_eq!(tokio::join!(request, respond).0.status, 200);
        at_rest(&router).await;
    }
    let found = admin(&router, "/admin/v1/decisions").await;
    let predicted: Vec<u64> = found["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["prompt_tokens"].as_u64().unwrap())
        .collect();
    let [third, _, first] = predicted[..] else {
        panic!("{predicted:?}")
    };
    // 1,000 tokens are assumed of an image, and some 20 of the text.
    assert!((1000..1100).contains(&first), "{predicted:?}");
    assert!((1209..1229).contains(&third), "{predicted:?}");
}

/// Plays an engine that reports 500 waiting requests at first, and then no more.
async fn overloaded(mut upstream: Upstream, readings: Arc<AtomicU32>) {
    loop {
        let exchange = upstream.next().await;
        if !exchange.head.starts_with("GET /metrics") {
            exchange.answer("200 OK", &answer(50)).await;
        } else if readings.fetch_add(1, Ordering::Relaxed) < 4 {
            exchange
                .answer(
                    "200 OK",
                    "vllm:num_requests_waiting 500\nvllm:num_requests_running 8\n",
                )
                .await;
        } else {
            exchange.answer("503 Service Unavailable", "").await;
        }
    }
}

#[tokio::test]
async fn an_engine_whose_figures_stop_is_not_taken_for_idle() {
    let (busy, mut idle) = (
        Upstream::saying(&[("/metrics", "")]).await,
        Upstream::start().await,
    );
    let router = route(&[busy.address, idle.address], |config| {
        config.health.queue_interval = Some(Duration::from_millis(20));
    })
    .await;
    let readings = Arc::new(AtomicU32::new(0));
    let playing = tokio::spawn(overloaded(busy, Arc::clone(&readings)));
    // A figure is good for two and a half intervals.
    until("the figure is stale", || readings.load(Ordering::Relaxed) > 12).await;
    for number in 0..6 {
        let body = ask(&words(number, 50), json!({})).to_string();
        let request = client::call(router.address, "POST", CHAT, &[], body);
        let respond = async { idle.next().await.answer("200 OK", &answer(50)).await };
        let (answer, ()) = tokio::join!(request, respond);
        assert_eq!(answer.status, 200);
    }
    playing.abort();
}
