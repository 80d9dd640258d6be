//! Names chosen by unauthenticated clients: none is kept, or shown to others, at any length.

use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::{metrics, route};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;

const LONGEST: usize = 256;

/// A worker that accepts any model, because it lists none, as old versions of engines do.
async fn names_none() -> Upstream {
    Upstream::saying(&[("/v1/models", "{}")]).await
}

fn body(path: &str, model: &str) -> (String, &'static str) {
    if path.starts_with("/v1/audio") {
        let form = format!(
            "--xyz\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--xyz\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nf\r\n--xyz--\r\n"
        );
        return (form, "multipart/form-data; boundary=xyz");
    }
    let body = json!({ "model": model, "messages": [], "prompt": "x", "input": "x", "text": "x" });
    (body.to_string(), "application/json")
}

async fn refused(router: &Server, path: &str, model: &str) {
    let (body, kind) = body(path, model);
    let answer = client::call(router.address, "POST", path, &[("content-type", kind)], body).await;
    assert_refusal(&answer, path);
}

fn assert_refusal(answer: &Whole, path: &str) {
    let error = answer.json();
    let error = &error["error"];
    assert_eq!(answer.status, 400, "{path}");
    assert!(
        error["message"].as_str().unwrap().contains("`model`"),
        "{path}: {error}"
    );
    assert!(answer.body.len() < 1000, "{path}");
}

#[tokio::test]
async fn an_overlong_model_name_is_a_400_at_every_endpoint_and_is_not_kept() {
    let mut worker = names_none().await;
    let router = route(&[worker.address], |_| {}).await;
    let long = "m".repeat(1 << 20);
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/generate",
        "/v1/embeddings",
        "/tokenize",
        "/v1/audio/transcriptions",
    ] {
        for name in [&"m".repeat(LONGEST + 1), "a\nb", "a\u{7f}b"] {
            refused(&router, path, name).await;
        }
        if !path.starts_with("/v1/audio") {
            refused(&router, path, &long).await;
        }
    }
    assert!(!worker.has_more(), "none of it reaches the worker");
    let page = metrics(&router).await;
    let mut values = page.samples().iter().flat_map(|sample| sample.labels.values());
    assert!(values.all(|value| value.len() <= LONGEST));
}

#[tokio::test]
async fn the_longest_allowed_model_name_is_served() {
    let mut worker = names_none().await;
    let router = route(&[worker.address], |_| {}).await;
    let (body, kind) = body(CHAT, &"m".repeat(LONGEST));
    let kind = [("content-type", kind)];
    let asked = client::open(router.address, "POST", CHAT, &kind, body);
    let answered = async { worker.next().await.answer("200 OK", "{}").await };
    let (answer, ()) = tokio::join!(asked, answered);
    assert_eq!(answer.unwrap().status, 200);
}

#[tokio::test]
async fn a_workers_list_of_models_is_bounded() {
    let fit = (0..5000).map(|at| json!({ "id": format!("m{at}") }));
    let cards: Vec<_> = std::iter::once(json!({ "id": "x".repeat(100_000) }))
        .chain(fit)
        .collect();
    let listed = json!({ "data": cards }).to_string();
    let worker = Upstream::saying(&[("/v1/models", listed.leak())]).await;
    let router = route(&[worker.address], |_| {}).await;
    until("the worker's models are known", || {
        router.parts().state.routing.fleet.workers()[0].models().is_some()
    })
    .await;
    let shown = client::call(router.address, "GET", "/v1/models", &[], "").await;
    let shown = shown.json();
    let shown = shown["data"].as_array().unwrap();
    assert_eq!(shown.len(), 1024);
    assert!(
        shown
            .iter()
            .all(|card| card["id"].as_str().unwrap().len() <= LONGEST)
    );
}
