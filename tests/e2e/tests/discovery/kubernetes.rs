//! Discovery by a Kubernetes API server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sim_engine::Engine;
use tailroute_e2e::client;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::{until, within};
use tokio::net::TcpSocket;

use super::api::Api;
use super::{Finding, engine, slow};

/// Time within which an endpoint that is not ready gets no new turns.
const LIMIT: Duration = Duration::from_millis(200);
/// A turn that takes longer is one of a machine that stands still, with the router and the server on it.
const LONGEST_TURN: Duration = Duration::from_millis(25);
pub(crate) const SERVICES: &str = "services = [\"vllm\"]";

/// A slice with one endpoint: the engine at this address, as a pod with this name.
pub(crate) fn slice(pod: &str, at: SocketAddr, conditions: Value) -> Value {
    json!({
        "metadata": { "name": format!("slice-{pod}"), "labels": { "kubernetes.io/service-name": "vllm" } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": at.port(), "protocol": "TCP" }],
        "endpoints": [{ "addresses": [at.ip().to_string()], "conditions": conditions, "targetRef": { "kind": "Pod", "name": pod } }],
    })
}

pub(crate) fn ready() -> Value {
    json!({ "ready": true, "serving": true, "terminating": false })
}

fn not_ready() -> Value {
    json!({ "ready": false, "serving": false, "terminating": false })
}

/// Two engines, the endpoints `a` and `b` of a server, and a router that has found both.
async fn two(engine_a: sim_engine::EngineConfig) -> (Api, [Engine; 2], Finding) {
    let engines = [engine(engine_a).await, engine(quick()).await];
    let api = Api::start().await;
    api.put(slice("a", engines[0].addr(), ready()));
    api.put(slice("b", engines[1].addr(), ready()));
    let finding = Finding::start(&api.config(SERVICES)).await;
    finding.until_ready(&["a", "b"]).await;
    api.until_more("watch", 0).await;
    (api, engines, finding)
}

#[tokio::test]
async fn endpoints_of_a_service_join_and_get_turns_and_name_their_source() {
    let (api, _engines, finding) = two(quick()).await;
    let asked = &api.asked()[0];
    assert_eq!(
        asked.path,
        "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices"
    );
    assert_eq!(asked.selector, "kubernetes.io/service-name in (vllm)");
    let late = engine(quick()).await;
    api.put(slice("late", late.addr(), ready()));
    finding.until_ready(&["late"]).await;
    let mut served = vec![
        finding.chat().await.worker(),
        finding.chat().await.worker(),
        finding.chat().await.worker(),
    ];
    served.sort();
    assert_eq!(served, ["a", "b", "late"]);
    let workers = finding.admin("/admin/v1/workers").await;
    assert!(
        workers["workers"]
            .as_array()
            .unwrap()
            .iter()
            .all(|worker| worker["source"] == "kubernetes")
    );
    let source = finding.source().await;
    assert_eq!(
        (&source["named"], &source["ready"], &source["failure"]),
        (&json!(3), &json!(3), &Value::Null)
    );
    assert_eq!(source["of"], "endpoints of vllm");
    let page = finding.metrics().await;
    let labels = [("source", "kubernetes"), ("state", "ready")];
    assert_eq!(page.sum("tailroute_discovery_workers", &labels), 3.0);
    assert_eq!(page.sum("tailroute_discovery_up", &[]), 1.0);
}

#[tokio::test]
async fn an_endpoint_that_turns_not_ready_gets_no_new_request_200_ms_after_the_event() {
    let (api, engines, finding) = two(slow()).await;
    let under_way = finding.stream_on("a").await;
    api.put(slice("a", engines[0].addr(), not_ready()));
    let mut since = Duration::ZERO;
    let mut last_to_a = None;
    let mut to_b = 0;
    while to_b < 20 || since < 3 * LIMIT {
        let began = Instant::now();
        match finding.chat().await.worker().as_str() {
            "a" => last_to_a = Some(since),
            _ => to_b += usize::from(since > LIMIT),
        }
        since += began.elapsed().min(LONGEST_TURN);
    }
    assert!(
        last_to_a.is_none_or(|last| last <= LIMIT),
        "a request went to it {last_to_a:?} after the event"
    );
    assert_eq!(finding.admin("/admin/v1/workers/a").await["state"], "not_ready");
    assert!(
        finding.find("a").unwrap().is_well(),
        "it answers its probes all the while"
    );
    let whole = under_way.whole().await;
    assert!(whole.text().ends_with("data: [DONE]\n\n"), "what it had goes on");
    // Once ready again, it is the same worker.
    let before = finding.find("a").unwrap();
    api.put(slice("a", engines[0].addr(), ready()));
    finding.until_ready(&["a"]).await;
    assert!(std::sync::Arc::ptr_eq(&before, &finding.find("a").unwrap()));
}

#[tokio::test]
async fn an_endpoint_that_is_deleted_mid_stream_finishes_its_streams_and_is_forgotten() {
    let (api, engines, finding) = two(slow()).await;
    let under_way = finding.stream_on("a").await;
    api.delete("slice-a");
    until("it to be leaving", || {
        finding
            .find("a")
            .is_none_or(|worker| worker.admin_state().is_final())
    })
    .await;
    for _ in 0..4 {
        assert_eq!(finding.chat().await.worker(), "b");
    }
    assert!(
        finding.find("a").is_some(),
        "it stays until it has ended what it had"
    );
    let whole = under_way.whole().await;
    assert!(
        whole.clean && whole.text().ends_with("data: [DONE]\n\n"),
        "the stream ends whole"
    );
    finding.until_gone("a").await;
    // The name can be used again.
    api.put(slice("a", engines[0].addr(), ready()));
    finding.until_ready(&["a"]).await;
}

#[tokio::test]
async fn a_terminating_endpoint_leaves_and_a_moved_one_is_a_new_worker() {
    let (api, engines, finding) = two(quick()).await;
    let terminating = json!({ "ready": false, "serving": true, "terminating": true });
    api.put(slice("a", engines[0].addr(), terminating));
    finding.until_gone("a").await;
    let elsewhere = engine(quick()).await;
    api.put(slice("b", elsewhere.addr(), ready()));
    let moved = elsewhere.addr().port();
    until("it to be elsewhere", || {
        finding
            .find("b")
            .is_some_and(|worker| worker.is_ready() && worker.spec.url.port_u16() == Some(moved))
    })
    .await;
    assert_eq!(finding.names(), ["b"]);
}

#[tokio::test]
async fn a_broken_watch_resumes_at_the_last_bookmark() {
    let (api, engines, finding) = two(quick()).await;
    let bookmark = api.bookmark();
    let heard = finding.source().await["heard_at_unix_s"].as_u64().unwrap();
    assert!(heard > 0);
    for round in 1..4 {
        api.cut();
        api.until_more("watch", round).await;
    }
    let asked = api.asked();
    let last = asked.last().unwrap();
    assert_eq!((last.verb, &last.version), ("watch", &bookmark));
    assert_eq!(api.count("list"), 1, "nothing is listed again");
    // The next watch reports changes made without a watch.
    api.cut();
    api.put(slice("a", engines[0].addr(), not_ready()));
    until("it to be told", || {
        finding.find("a").is_some_and(|worker| !worker.is_offered())
    })
    .await;
    assert_eq!(api.count("list"), 1);
}

#[tokio::test]
async fn a_broken_event_is_repeated_by_the_next_watch_and_a_slow_one_is_awaited() {
    let (api, engines, finding) = two(quick()).await;
    api.break_a_line();
    api.put(slice("a", engines[0].addr(), not_ready()));
    until("it to be told", || {
        finding.find("a").is_some_and(|worker| !worker.is_offered())
    })
    .await;
    api.be_slow();
    api.put(slice("a", engines[0].addr(), ready()));
    finding.until_ready(&["a"]).await;
    assert_eq!(api.count("list"), 1);
    assert_eq!(finding.source().await["failure"], Value::Null);
    let page = finding.metrics().await;
    assert_eq!(page.sum("tailroute_discovery_failures_total", &[]), 0.0);
}

#[tokio::test]
async fn a_forgotten_version_causes_a_new_list_in_pages() {
    let (api, _engines, finding) = two(quick()).await;
    let late = engine(quick()).await;
    api.delete("slice-a");
    api.put(slice("late", late.addr(), ready()));
    api.page(1);
    api.forget();
    api.cut();
    api.until_more("list", 1).await;
    finding.until_ready(&["late", "b"]).await;
    finding.until_gone("a").await;
    assert!(api.asked().iter().any(|asked| asked.goes_on), "in pages");
    assert_eq!(finding.source().await["failure"], Value::Null);
}

#[tokio::test]
async fn a_forbidden_list_is_reported_and_retried() {
    let engine = engine(quick()).await;
    let api = Api::start().await;
    api.put(slice("a", engine.addr(), ready()));
    api.forbid("list");
    let finding = Finding::start(&api.config(SERVICES)).await;
    let what = finding.until_failing().await;
    let expected = "the router may not list endpointslices.discovery.k8s.io in namespace inference: its service account \
                    needs a Role there that allows get, list and watch of endpointslices.discovery.k8s.io";
    assert!(what.starts_with(expected), "{what}");
    assert!(
        what.contains("system:serviceaccount:inference:tailroute"),
        "{what}"
    );
    let page = finding.metrics().await;
    assert_eq!(
        page.sum("tailroute_discovery_up", &[("source", "kubernetes")]),
        0.0
    );
    assert!(page.sum("tailroute_discovery_failures_total", &[]) >= 1.0);
    assert_eq!(finding.chat().await.status, 503);
    api.allow();
    finding.until_ready(&["a"]).await;
    finding.until_heard_again().await;
}

#[tokio::test]
async fn a_forbidden_watch_keeps_the_known_workers() {
    let (api, _engines, finding) = two(quick()).await;
    api.forbid("watch");
    api.cut();
    let what = finding.until_failing().await;
    assert!(
        what.starts_with("the router may not watch endpointslices.discovery.k8s.io in namespace inference"),
        "{what}"
    );
    api.delete("slice-a");
    assert_eq!(finding.names(), ["a", "b"]);
    assert_eq!(finding.chat().await.status, 200);
    api.allow();
    finding.until_gone("a").await;
}

#[tokio::test]
async fn an_unreachable_server_removes_no_worker_and_is_reconnected() {
    let (api, engines, finding) = two(quick()).await;
    let address = api.leave().await;
    // A bound socket that does not listen reserves the port.
    let reserved = TcpSocket::new_v4().unwrap();
    reserved.set_reuseaddr(true).unwrap();
    reserved.bind(address).unwrap();
    let what = finding.until_failing().await;
    assert!(
        what.starts_with("the API server cannot be reached to watch"),
        "{what}"
    );
    assert_eq!(finding.names(), ["a", "b"]);
    assert_eq!(finding.chat().await.status, 200);
    // Another server without the first one's history.
    drop(reserved);
    let api = Api::at(address).await;
    api.put(slice("b", engines[1].addr(), ready()));
    api.forget();
    for _ in 0..200 {
        api.forget();
    }
    finding.until_gone("a").await;
    finding.until_ready(&["b"]).await;
}

#[tokio::test]
async fn pods_by_label_are_configured_by_their_annotations() {
    let engine = engine(quick()).await;
    let pod = |name: &str, ready: &str, annotations: Value| {
        json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "containers": [{ "ports": [{ "name": "http", "containerPort": engine.addr().port() }] }] },
            "status": { "phase": "Running", "podIP": "127.0.0.1", "conditions": [{ "type": "Ready", "status": ready }] },
        })
    };
    let says = json!({ "worker.tailroute.io/capacity-tokens": "48000", "worker.tailroute.io/ranks": "1" });
    let api = Api::start().await;
    api.put(pod("vllm-0", "True", says));
    api.put(pod(
        "wrong",
        "True",
        json!({ "worker.tailroute.io/capacity-tokens": "many" }),
    ));
    let finding = Finding::start(&api.config("pods = \"app=vllm\"")).await;
    finding.until_ready(&["vllm-0"]).await;
    let asked = &api.asked()[0];
    assert_eq!(
        (asked.path.as_str(), asked.selector.as_str()),
        ("/api/v1/namespaces/inference/pods", "app=vllm")
    );
    let shown = finding.admin("/admin/v1/workers/vllm-0").await;
    assert_eq!(shown["capacity_tokens"], 48_000);
    let source = finding.source().await;
    assert_eq!(source["refused"]["total"], 1);
    assert_eq!(
        source["refused"]["told"][0],
        json!({ "name": "wrong", "why": "worker.tailroute.io/capacity-tokens: expected an integer of at least 1, found \"many\"" })
    );
    api.put(pod("vllm-0", "False", json!({})));
    until("it to leave as it was", || {
        finding
            .find("vllm-0")
            .is_none_or(|worker| worker.spec.capacity.0 != 48_000)
    })
    .await;
    until("it to be back, not ready", || {
        finding.find("vllm-0").is_some_and(|worker| !worker.is_offered())
    })
    .await;
}

#[tokio::test]
async fn foreign_objects_and_too_many_objects_are_rejected() {
    let engines = [
        engine(quick()).await,
        engine(quick()).await,
        engine(quick()).await,
    ];
    let api = Api::start().await;
    let own = format!(
        "[[workers]]\nname = \"own\"\nurl = \"http://{}\"\n",
        engines[0].addr()
    );
    api.put(slice("own", engines[1].addr(), ready()));
    api.put(slice("same", engines[0].addr(), ready()));
    let finding = Finding::start(&format!(
        "{own}[discovery]\nmax_workers = 1\n{}",
        api.config(SERVICES)
    ))
    .await;
    finding.until_ready(&["own"]).await;
    api.put(slice("x", engines[1].addr(), ready()));
    finding.until_ready(&["x"]).await;
    api.put(slice("y", engines[2].addr(), ready()));
    let why = |source: &Value, name: &str| {
        let told = source["refused"]["told"].as_array().unwrap().iter();
        let mut of = told
            .filter(|refused| refused["name"] == name)
            .map(|refused| refused["why"].as_str().unwrap().to_owned());
        of.next_back()
    };
    let three = async {
        loop {
            let source = finding.source().await;
            if source["refused"]["total"] == 3 {
                return source;
            }
        }
    };
    let source = within(three).await;
    assert_eq!(
        why(&source, "own").as_deref(),
        Some("the configuration has a worker of this name")
    );
    assert_eq!(why(&source, "same").as_deref(), Some("it has the address of own"));
    assert_eq!(
        why(&source, "y").as_deref(),
        Some("the limit of 1 workers is reached (discovery.max_workers)")
    );
    assert_eq!(finding.names(), ["own", "x"]);
    let body = json!({ "reason": "less work" });
    let removed = client::admin(
        finding.router.admin_address,
        "POST",
        "/admin/v1/workers/x/remove",
        &[],
        Some(&body),
    )
    .await;
    assert_eq!(removed.status, 409, "who found it would have it join again");
    assert!(
        removed.text().contains("it was discovered by kubernetes"),
        "{}",
        removed.text()
    );
}
