//! Hostile API servers: their influence on the router's memory, work and knowledge.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::kubernetes::{SERVICES, ready, slice};
use super::{Finding, engine};

/// An answer: some bytes, then others repeatedly for as long as they are read.
#[derive(Clone, Default)]
struct Said {
    first: Vec<u8>,
    again: Vec<u8>,
}

/// A server with scripted answers to the n-th list or watch.
struct Scripted {
    address: SocketAddr,
    lists: Arc<AtomicUsize>,
    watches: Arc<AtomicUsize>,
}

fn whole(status: &str, body: &str) -> Said {
    let length = body.len();
    Said {
        first: format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes(),
        again: Vec::new(),
    }
}

fn list(items: Value) -> Said {
    let list = json!({ "metadata": { "resourceVersion": "7" }, "items": items });
    whole("200 OK", &list.to_string())
}

/// A watch whose body ends with the connection.
fn lines(first: &[u8], again: &[u8]) -> Said {
    Said {
        first: [b"HTTP/1.1 200 OK\r\n\r\n", first].concat(),
        again: again.to_vec(),
    }
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

impl Scripted {
    async fn start(says: impl Fn(bool, usize) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (lists, watches) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (says, counts) = (Arc::new(says), (Arc::clone(&lists), Arc::clone(&watches)));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (says, (lists, watches)) = (Arc::clone(&says), counts.clone());
                tokio::spawn(async move {
                    while let Some(head) = head(&mut stream).await {
                        let watches_now = head.contains("watch=true");
                        let count = if watches_now { &watches } else { &lists };
                        let said = says(watches_now, count.fetch_add(1, Ordering::Relaxed));
                        if stream.write_all(&said.first).await.is_err() {
                            return;
                        }
                        while !said.again.is_empty() {
                            if stream.write_all(&said.again).await.is_err() {
                                return;
                            }
                        }
                        if !said.first.windows(15).any(|part| part == b"content-length:") {
                            return;
                        }
                    }
                });
            }
        });
        Self {
            address,
            lists,
            watches,
        }
    }

    fn config(&self) -> String {
        let address = self.address;
        format!(
            "[discovery]\nmax_workers = 8\n[discovery.kubernetes]\n{SERVICES}\nnamespace = \"inference\"\napi_url = \"http://{address}\"\n"
        )
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

/// A router that has found the worker `a`, and whose server gives these answers to every watch and every further list.
async fn after_a(to_watch: Said, to_list: Said) -> (Scripted, sim_engine::Engine, Finding) {
    let engine = engine(quick()).await;
    let first = list(json!([slice("a", engine.addr(), ready())]));
    let server = Scripted::start(move |watches, number| match (watches, number) {
        (true, _) => to_watch.clone(),
        (false, 0) => first.clone(),
        (false, _) => to_list.clone(),
    })
    .await;
    let finding = Finding::start(&server.config()).await;
    finding.until_ready(&["a"]).await;
    (server, engine, finding)
}

fn gone() -> Said {
    whole("410 Gone", "{}")
}

/// Checks that the last known worker is kept and serves.
async fn still_serves(finding: &Finding) {
    assert_eq!(finding.names(), ["a"]);
    assert_eq!(finding.chat().await.status, 200);
}

#[tokio::test]
async fn a_response_that_is_not_a_list_removes_no_worker() {
    for (answer, why) in [
        ("{}", "is not a list"),
        (r#"{"metadata":{"resourceVersion":"9"}}"#, "missing field `items`"),
        (
            r#"{"kind":"Status","metadata":{"resourceVersion":"9"}}"#,
            "missing field `items`",
        ),
        (r#"{"items":[]}"#, "no resourceVersion"),
        (
            r#"{"metadata":{"resourceVersion":"9"},"items":[{}]}"#,
            "an object has no name",
        ),
        ("", "is not a list"),
        ("<html>", "is not a list"),
    ] {
        let (_server, _engine, finding) = after_a(gone(), whole("200 OK", answer)).await;
        let what = finding.until_failing().await;
        assert!(what.contains(why), "{answer}: {what}");
        still_serves(&finding).await;
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = elsewhere.local_addr().unwrap();
    let status = format!("302 Found\r\nlocation: http://{there}/");
    let (_server, _engine, finding) = after_a(gone(), whole(&status, "")).await;
    let what = finding.until_failing().await;
    assert!(what.contains("answered 302"), "{what}");
    still_serves(&finding).await;
    let asked = tokio::time::timeout(Duration::from_millis(300), elsewhere.accept()).await;
    assert!(asked.is_err(), "nothing was asked there");
}

#[tokio::test]
async fn an_invalid_watch_is_reported_and_changes_nothing() {
    let name = "n".repeat(254);
    let named = json!({ "metadata": { "name": name, "resourceVersion": "8" } });
    let versioned = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "b", "resourceVersion": "8".repeat(129) },
    });
    for (lines_of_it, why) in [
        (b"\xff\xfe\n".to_vec(), "invalid watch event"),
        (b"{\"type\":\"ADDED\"}\n".to_vec(), "invalid watch event"),
        (event("ADDED", &json!(7)).into_bytes(), "invalid watch event"),
        (
            event("ADDED", &named).into_bytes(),
            "name of an object has 254 bytes",
        ),
        (
            event("BOOKMARK", &versioned).into_bytes(),
            "resourceVersion has 129 bytes",
        ),
        (
            event("MODIFIED", &versioned).into_bytes(),
            "resourceVersion has 129 bytes",
        ),
    ] {
        let (_server, _engine, finding) = after_a(lines(&lines_of_it, b""), gone()).await;
        let what = finding.until_failing().await;
        assert!(what.contains(why), "{what}");
        still_serves(&finding).await;
    }
}

#[tokio::test]
async fn an_endless_line_is_aborted_at_its_bound() {
    let (_server, _engine, finding) = after_a(lines(b"", &[b'a'; 1 << 16]), gone()).await;
    let what = finding.until_failing().await;
    assert!(what.contains("an event of more than"), "{what}");
    still_serves(&finding).await;
}

#[tokio::test]
async fn an_endless_list_is_aborted_after_its_pages() {
    let page = json!({ "metadata": { "resourceVersion": "7", "continue": "more" }, "items": null });
    let (server, _engine, finding) = after_a(gone(), whole("200 OK", &page.to_string())).await;
    let what = finding.until_failing().await;
    assert!(what.contains("narrow the selection"), "{what}");
    assert!(server.lists() < 1_100, "{}", server.lists());
    still_serves(&finding).await;
}

#[tokio::test]
async fn too_many_endpoints_are_rejected_in_any_number_of_objects() {
    let many: Vec<Value> = (0..7_000).map(|_| json!({ "addresses": ["10.0.0.1"] })).collect();
    let slices: Vec<Value> = (0..3)
        .map(|number| json!({ "metadata": { "name": format!("s{number}") }, "endpoints": many }))
        .collect();
    let (_server, _engine, finding) = after_a(gone(), list(json!(slices))).await;
    let what = finding.until_failing().await;
    assert!(what.contains("20000 endpoints"), "{what}");
    still_serves(&finding).await;
}

#[tokio::test]
async fn an_answer_of_too_many_values_is_rejected_before_it_is_parsed() {
    let many = json!([{ "metadata": { "name": "s" }, "endpoints": vec![json!({}); 100_000] }]);
    let (_server, _engine, finding) = after_a(gone(), list(many)).await;
    let what = finding.until_failing().await;
    assert!(what.contains("more than 131072 values"), "{what}");
    still_serves(&finding).await;
}

#[tokio::test]
async fn a_rejected_version_causes_a_new_list() {
    let (server, engine, finding) = {
        let engine = engine(quick()).await;
        let first = list(json!([slice("a", engine.addr(), ready())]));
        let server = Scripted::start(move |watches, number| match (watches, number) {
            (true, 0) => whole("400 Bad Request", "{}"),
            (true, _) => lines(b"", b""),
            (false, _) => first.clone(),
        })
        .await;
        let finding = Finding::start(&server.config()).await;
        (server, engine, finding)
    };
    until("it to be listed again", || server.lists() == 2).await;
    finding.until_heard_again().await;
    still_serves(&finding).await;
    drop(engine);
}

#[tokio::test]
async fn a_server_that_forgets_every_version_is_polled_with_backoff() {
    let engine = engine(quick()).await;
    let all = list(json!([slice("a", engine.addr(), ready())]));
    let server = Scripted::start(move |watches, _| if watches { gone() } else { all.clone() }).await;
    let finding = Finding::start(&server.config()).await;
    finding.until_ready(&["a"]).await;
    // Pauses of 0.2, 0.4, 0.8, 1.6 s, each of at least half that; without them there would be four lists a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(server.lists() <= 6, "{} lists", server.lists());
    still_serves(&finding).await;
}

/// The server sends at full speed for as long as it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_changes_of_addresses_leak_nothing() {
    let engine = engine(quick()).await;
    let mut flood = String::new();
    for number in 0..2_000u16 {
        let [high, low] = number.to_be_bytes();
        let at = SocketAddr::from(([127, 1, high, low], 9));
        let flapping = slice(&format!("flap-{number}"), at, ready());
        flood.push_str(&event("ADDED", &flapping));
        flood.push_str(&event("DELETED", &flapping));
    }
    let first = list(json!([slice("a", engine.addr(), ready())]));
    let server = Scripted::start(move |watches, _| {
        if watches {
            lines(b"", flood.as_bytes())
        } else {
            first.clone()
        }
    })
    .await;
    let finding = Finding::start(&server.config()).await;
    finding.until_ready(&["a"]).await;
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < end {
        assert_eq!(finding.chat().await.status, 200);
    }
    assert!(server.watches.load(Ordering::Relaxed) >= 1);
    let slots = finding.router.parts().state.routing.fleet.workers().len();
    assert!(slots <= 3 * 8, "{slots} slots of at most 8 workers");
    let page = finding.metrics().await;
    let of_workers = page
        .samples()
        .iter()
        .filter(|sample| sample.name == "tailroute_worker_ready");
    let series = of_workers.count();
    assert!(series <= 3 * 8, "{series} workers have metrics");
}
