//! Tests of the conversion of objects to workers.

use config::{Config, Sources};
use serde_json::{Value, json};

use super::super::pods::Pod;
use super::*;
use k8s_openapi::api::discovery::v1::EndpointSlice;

fn configured(port: &str) -> Config {
    let text = format!(
        "[discovery.worker]\ncapacity_tokens = 1_000\n[discovery.kubernetes]\nservices = [\"vllm\"]\nport = {port:?}\n"
    );
    let file = Some(("t.toml", text.as_str()));
    config::load(&Sources {
        file,
        ..Sources::default()
    })
    .unwrap()
}

fn found<T: Object>(port: &str, objects: &[Value]) -> Found {
    let config = configured(port);
    let settings = config.discovery.kubernetes.as_ref().unwrap();
    let rules = Rules::new(settings, &config.discovery.template);
    let read = |object: &Value| {
        serde_json::from_value::<T>(object.clone())
            .unwrap()
            .endpoints(&rules)
    };
    let endpoints: Vec<SliceEndpoint> = objects.iter().flat_map(read).collect();
    gather(endpoints.iter())
}

/// Name, address and readiness of a worker.
type Taken<'a> = (&'a str, String, bool);
/// Name of a refused entry, and the reason.
type NotTaken<'a> = (&'a str, &'a str);

/// Returns the workers and the refused entries.
fn told(found: &Found) -> (Vec<Taken<'_>>, Vec<NotTaken<'_>>) {
    let taken = found
        .workers
        .values()
        .map(|named| (&*named.spec.name, named.spec.url.to_string(), named.ready));
    let refused = found
        .refused
        .told
        .iter()
        .map(|refused| (&*refused.name, &*refused.why));
    (taken.collect(), refused.collect())
}

fn slice(ports: Value, endpoints: Value) -> Value {
    json!({ "metadata": { "name": "vllm-abc", "resourceVersion": "7" }, "addressType": "IPv4", "ports": ports, "endpoints": endpoints })
}

fn one_port() -> Value {
    json!([{ "name": "http", "port": 8000, "protocol": "TCP" }])
}

fn endpoint(pod: &str, address: &str, conditions: Value) -> Value {
    json!({ "addresses": [address], "conditions": conditions, "targetRef": { "kind": "Pod", "name": pod } })
}

#[test]
fn an_endpoint_gets_work_if_it_is_ready_and_serves_and_is_gone_when_it_terminates() {
    let endpoints = json!([
        endpoint("silent", "10.0.0.1", json!({})),
        endpoint(
            "ready",
            "10.0.0.2",
            json!({ "ready": true, "serving": true, "terminating": false })
        ),
        endpoint(
            "not-ready",
            "10.0.0.3",
            json!({ "ready": false, "serving": false, "terminating": false })
        ),
        // As set by `publishNotReadyAddresses`.
        endpoint(
            "published",
            "10.0.0.4",
            json!({ "ready": true, "serving": false })
        ),
        endpoint(
            "terminating",
            "10.0.0.5",
            json!({ "ready": false, "serving": true, "terminating": true })
        ),
        json!({ "addresses": ["10.0.0.6"] }),
    ]);
    let found = found::<EndpointSlice>("", &[slice(one_port(), endpoints)]);
    let url = |address: &str| format!("http://{address}:8000/");
    assert_eq!(
        told(&found).0,
        [
            ("10.0.0.6:8000", url("10.0.0.6"), true),
            ("not-ready", url("10.0.0.3"), false),
            ("published", url("10.0.0.4"), false),
            ("ready", url("10.0.0.2"), true),
            ("silent", url("10.0.0.1"), true),
        ]
    );
    assert_eq!(
        found.workers["ready"].spec.capacity.0, 1_000,
        "as the template has it"
    );
}

#[test]
fn an_endpoint_between_two_slices_is_one_worker_and_one_of_both_families_goes_by_ipv4() {
    let one = |address, ready: bool| {
        slice(
            one_port(),
            json!([endpoint("pod", address, json!({ "ready": ready }))]),
        )
    };
    let moved = found::<EndpointSlice>("", &[one("10.0.0.1", false), one("10.0.0.1", true)]);
    assert_eq!(
        told(&moved).0,
        [("pod", "http://10.0.0.1:8000/".to_owned(), true)]
    );
    for both in [
        [one("fd00::1", true), one("10.0.0.1", false)],
        [one("10.0.0.1", false), one("fd00::1", true)],
    ] {
        assert_eq!(
            told(&found::<EndpointSlice>("", &both)).0,
            [("pod", "http://10.0.0.1:8000/".to_owned(), false)]
        );
    }
    let six = found::<EndpointSlice>("", &[one("fd00::1", true)]);
    assert_eq!(told(&six).0, [("pod", "http://[fd00::1]:8000/".to_owned(), true)]);
}

#[test]
fn a_port_is_the_only_one_or_the_one_that_is_named() {
    let two = json!([{ "name": "http", "port": 8000 }, { "name": "metrics", "port": 9000 }]);
    let of = |port: &str, ports: &Value| {
        let found = found::<EndpointSlice>(
            port,
            &[slice(
                ports.clone(),
                json!([endpoint("pod", "10.0.0.1", json!({}))]),
            )],
        );
        let (taken, refused) = told(&found);
        let taken = taken.first().map(|(_, url, _)| url.clone());
        taken.unwrap_or_else(|| format!("{}: {}", refused[0].0, refused[0].1))
    };
    assert_eq!(of("metrics", &two), "http://10.0.0.1:9000/");
    assert_eq!(of("8123", &two), "http://10.0.0.1:8123/");
    assert_eq!(
        of("", &two),
        "pod: its Service has several ports: set discovery.kubernetes.port"
    );
    assert_eq!(of("grpc", &two), "pod: its Service has no port named grpc");
    assert_eq!(of("", &json!(null)), "pod: its Service has no TCP port");
}

#[test]
fn no_worker_is_at_an_address_that_only_a_machine_itself_has() {
    for address in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "0.0.0.0",
        "224.0.0.1",
        "fe80::1",
        "nonsense",
        "vllm.example.com",
    ] {
        let found = found::<EndpointSlice>(
            "",
            &[slice(one_port(), json!([endpoint("pod", address, json!({}))]))],
        );
        assert!(found.workers.is_empty(), "{address}");
        assert_eq!(found.refused.total, 1, "{address}");
    }
}

fn pod(meta: Value, status: Value) -> Value {
    let containers = json!([{ "name": "vllm", "ports": [{ "name": "http", "containerPort": 8000 }] }, { "name": "sidecar" }]);
    json!({ "metadata": meta, "spec": { "containers": containers }, "status": status })
}

fn up(address: &str, ready: &str) -> Value {
    let conditions =
        json!([{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": ready }]);
    json!({ "phase": "Running", "podIP": address, "conditions": conditions })
}

#[test]
fn a_pod_is_a_worker_while_it_has_an_address_and_neither_ends_nor_has_ended() {
    let named = |name: &str| json!({ "name": name });
    let pods = [
        pod(named("ready"), up("10.0.0.1", "True")),
        pod(named("not-ready"), up("10.0.0.2", "False")),
        pod(named("pending"), json!({ "phase": "Pending" })),
        pod(
            named("done"),
            json!({ "phase": "Succeeded", "podIP": "10.0.0.3" }),
        ),
        pod(
            json!({ "name": "ending", "deletionTimestamp": "2026-01-01T00:00:00Z" }),
            up("10.0.0.4", "True"),
        ),
    ];
    let found = found::<Pod>("", &pods);
    assert_eq!(
        told(&found).0,
        [
            ("not-ready", "http://10.0.0.2:8000/".to_owned(), false),
            ("ready", "http://10.0.0.1:8000/".to_owned(), true),
        ]
    );
}

#[test]
fn a_pods_annotations_say_what_it_is_and_wrong_ones_leave_it_out() {
    let annotated = |name: &str, annotations: Value| {
        pod(
            json!({ "name": name, "annotations": annotations }),
            up("10.0.0.1", "True"),
        )
    };
    let good = json!({
        "worker.tailroute.io/capacity-tokens": "480000",
        "worker.tailroute.io/models": "a,b",
        "worker.tailroute.io/ranks": "2",
        "worker.tailroute.io/dialect": "vllm_xargs",
        "worker.tailroute.io/port": "9000",
        "prometheus.io/scrape": "true",
    });
    let found_good = found::<Pod>("http", &[annotated("good", good)]);
    let spec = &found_good.workers["good/dp1"].spec;
    assert_eq!(
        (spec.url.to_string().as_str(), spec.rank),
        ("http://10.0.0.1:9000/", Some(1))
    );
    assert_eq!(
        (spec.capacity.0, spec.dialect),
        (480_000, config::Dialect::VllmXargs)
    );
    assert_eq!(spec.models, ["a", "b"]);
    let found_bad = found::<Pod>(
        "",
        &[
            annotated("typo", json!({ "worker.tailroute.io/capcity-tokens": "1" })),
            annotated("words", json!({ "worker.tailroute.io/ranks": "many" })),
            annotated("port", json!({ "worker.tailroute.io/port": "https?" })),
        ],
    );
    assert_eq!(
        told(&found_bad).1,
        [
            (
                "port",
                "worker.tailroute.io/port: expected a port's name or number, found \"https?\""
            ),
            (
                "typo",
                "worker.tailroute.io/capcity-tokens: not an annotation that is read; did you mean \
                 `worker.tailroute.io/capacity-tokens`?"
            ),
            (
                "words",
                "worker.tailroute.io/ranks: expected an integer of at least 1 and at most 64, found \"many\""
            ),
        ]
    );
}

#[test]
fn a_long_name_gives_way_to_the_address_and_what_is_told_of_many_is_bounded() {
    let long = "a".repeat(65);
    let found_long = found::<EndpointSlice>(
        "",
        &[slice(one_port(), json!([endpoint(&long, "10.0.0.1", json!({}))]))],
    );
    assert_eq!(told(&found_long).0[0].0, "10.0.0.1:8000");
    let many: Vec<Value> = (0..100)
        .map(|n| endpoint(&format!("p{n}"), "0.0.0.0", json!({})))
        .collect();
    let found_many = found::<EndpointSlice>("", &[slice(one_port(), json!(many))]);
    assert_eq!(
        (found_many.refused.total, found_many.refused.told.len()),
        (100, 32)
    );
}

#[test]
fn of_what_an_object_says_no_more_is_kept_than_an_api_server_may_say() {
    let long = "9".repeat(1 << 20);
    let slices = [slice(one_port(), json!([{ "addresses": [long] }]))];
    let config = configured("");
    let settings = config.discovery.kubernetes.as_ref().unwrap();
    let rules = Rules::new(settings, &config.discovery.template);
    let kept = |endpoint: &SliceEndpoint| {
        let why = endpoint.workers.as_ref().unwrap_err();
        endpoint.name.len() + endpoint.rank.1.len() + why.len()
    };
    let of_address: EndpointSlice = serde_json::from_value(slices[0].clone()).unwrap();
    assert!(kept(&of_address.endpoints(&rules)[0]) < 5_000);
    let says = json!({ "worker.tailroute.io/ranks": long });
    let annotated = pod(
        json!({ "name": "p", "annotations": says }),
        up("10.0.0.1", "True"),
    );
    let of_annotation: Pod = serde_json::from_value(annotated).unwrap();
    assert!(kept(&of_annotation.endpoints(&rules)[0]) < 5_000);
    let meta = |name: &str, version: &str| ObjectMeta {
        name: Some(name.to_owned()),
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    };
    assert!(check(&meta(&"n".repeat(253), &"8".repeat(128))).is_ok());
    assert!(check(&meta(&"n".repeat(254), "8")).is_err());
    assert!(check(&meta("n", &"8".repeat(129))).is_err());
}
