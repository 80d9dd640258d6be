//! Tests of sections that have no file of their own here.

use policy::units::Millis;

use super::*;

#[test]
fn classes_of_objectives_have_names_and_models_of_their_own() {
    let class = |name: &str, model: &str| {
        format!("[[objective.classes]]\nname = {name:?}\nttft_ms = 50.0\nmodels = [{model:?}]\n")
    };
    let config = load_text(&format!("{ONE_WORKER}{}", class("fast", "m"))).unwrap();
    assert_eq!(config.objective.classes[0].ttft, Millis(50.0));
    let text = format!("{ONE_WORKER}{}{}", class("fast", "m"), class("fast", "m"));
    let told = complaints(load_text(&text));
    assert!(
        told[0].contains("`fast` is already the name of another class"),
        "{told:?}"
    );
    assert!(
        told[1].contains("`m` already belongs to another class"),
        "{told:?}"
    );
    assert!(
        complaints(load_text(&format!("{ONE_WORKER}{}", class("a b", "m"))))[0].contains("visible ASCII")
    );
}

#[test]
fn the_two_ports_differ() {
    refused(
        &format!("server.listen = \"127.0.0.1:9090\"\n{ONE_WORKER}"),
        &["t.toml:1:1: admin.listen: 127.0.0.1:9090 is also the data port; expected a separate port"],
    );
}

#[test]
fn probes_must_not_overlap() {
    let told = complaints(load_text(&format!("{ONE_WORKER}[health]\ntimeout_ms = 5_000\n")));
    assert!(
        told[0].contains("health.timeout_ms: 5000 ms is longer than the 2000 ms between probes"),
        "{told:?}"
    );
}

#[test]
fn a_drain_is_not_over_before_its_delay() {
    let limits = |delay: f64| {
        load_text(&format!(
            "{ONE_WORKER}[limits]\ndrain_delay_s = {delay:.1}\ndrain_timeout_s = 5.0\n"
        ))
    };
    assert!(limits(5.0).is_ok());
    let told = complaints(limits(6.0));
    assert!(
        told[0].contains("limits.drain_delay_s: 6 s is longer than drain_timeout_s (5 s)"),
        "{told:?}"
    );
}

#[test]
fn a_level_that_is_none_is_refused() {
    assert!(load_text(&format!("{ONE_WORKER}[log]\nlevel = \"warn,tailroute=dbug\"\n")).is_err());
    refused(
        &format!("{ONE_WORKER}[log]\nlevel = \"inof\"\n"),
        &[
            "t.toml:4:1: log.level: expected one of off, error, warn, info, debug, trace, found \"inof\"; did you \
           mean `info`?",
        ],
    );
    assert!(load_text(&format!("{ONE_WORKER}[log]\nlevel = \"warn,tailroute=debug\"\n")).is_ok());
}

#[test]
fn a_collectors_path_is_for_http_alone() {
    let with = |protocol: &str| {
        load_text(&format!(
            "{ONE_WORKER}[traces]\nendpoint = \"http://c:4317/otlp/\"\nprotocol = \"{protocol}\"\n"
        ))
    };
    assert!(with("http").is_ok());
    let told = complaints(with("grpc")).concat();
    assert!(told.contains("traces.endpoint: has a path"), "{told}");
}

#[test]
fn headers_for_a_collector_are_read_from_their_file_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("headers");
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        load_text(&format!(
            "{ONE_WORKER}[traces]\nendpoint = \"https://collector:4317\"\nheaders_file = {file:?}\n"
        ))
    };
    let config = read("authorization: Bearer canary\n\nX-Scope-OrgID:7\n").unwrap();
    let traces = config.traces.unwrap();
    let told = |name| traces.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(
        (told("authorization"), told("x-scope-orgid")),
        (Some("Bearer canary"), Some("7"))
    );
    assert!(!format!("{traces:?}").contains("canary"));
    for (text, what) in [
        ("a: b\ncanary\n", "line 2: expected `name: value`"),
        ("canary canary: b\n", "line 1: invalid header name"),
        ("a: canary\u{1}\n", "line 1: invalid header value"),
        (
            "Content-Type: canary\n",
            "line 1: `content-type` is set by the router itself",
        ),
        (&"a: canary\n".repeat(33), "has 33 headers; expected at most 32"),
    ] {
        let told = complaints(read(text)).concat();
        assert!(
            told.contains("traces.headers_file") && told.contains(what),
            "{told}"
        );
        assert!(!told.contains("canary"), "{told}");
    }
    std::fs::remove_file(&file).unwrap();
    let missing =
        format!("{ONE_WORKER}[traces]\nendpoint = \"http://c\"\nheaders_file = {file:?}\nca_file = \"ca\"\n");
    let told = complaints(load_text(&missing)).concat();
    assert!(
        told.contains("cannot be read") && told.contains("traces.ca_file"),
        "{told}"
    );
}

#[test]
fn replicas_meet_at_servers_of_one_kind_with_files_that_can_be_read() {
    let fleet = |text: &str| load_text(&format!("{ONE_WORKER}[fleet]\n{text}"));
    assert_eq!(fleet("").unwrap().fleet, None);
    let known = fleet("nats = \"nats://a, nats://b:5222\"\nreplica = \"r1\"\n").unwrap();
    let known = known.fleet.unwrap();
    assert_eq!(known.servers, ["nats://a:4222", "nats://b:5222"]);
    assert_eq!(
        (known.cluster.as_str(), known.replica.as_deref()),
        ("tailroute", Some("r1"))
    );
    for (text, what) in [
        ("nats = \"a:4222\"\n", "fleet.nats: no scheme"),
        (
            "nats = \"nats://a,tls://b\"\n",
            "fleet.nats: some use TLS and some do not",
        ),
        ("cluster = \"a.b\"\n", "fleet.cluster: expected 1 to 32 letters"),
        ("replica = \"a b\"\n", "fleet.replica: "),
        (
            "token_file = \"none\"\n",
            "fleet.token_file: is set, but `fleet.nats` has no servers",
        ),
        (
            "nats = \"nats://a\"\ncredentials_file = \"none\"\n",
            "fleet.credentials_file: none cannot be read",
        ),
        (
            "nats = \"nats://a\"\nca_file = \"Cargo.toml\"\n",
            "fleet.ca_file: is set with a server that does not use TLS",
        ),
        (
            "nats = \"tls://a\"\ncert_file = \"Cargo.toml\"\n",
            "fleet.cert_file: a certificate and its key go together",
        ),
        (
            "nats = \"nats://a\"\ncredentials_file = \"Cargo.toml\"\n",
            "holds no NATS credentials",
        ),
    ] {
        let told = complaints(fleet(text)).join("\n");
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn a_gateway_is_told_addresses_at_a_port_of_its_own() {
    let picker = |text: &str| load_text(&format!("{ONE_WORKER}[endpoint_picker]\n{text}"));
    assert_eq!(picker("").unwrap().endpoint_picker, None);
    let known = picker("listen = \"127.0.0.1:9002\"\nfallbacks = 0\n").unwrap();
    let known = known.endpoint_picker.unwrap();
    assert_eq!((known.listen.port(), known.fallbacks), (9002, 0));
    for (text, what) in [
        (
            "listen = \"9002\"\n",
            "endpoint_picker.listen: expected an address and a port",
        ),
        (
            "listen = \"127.0.0.1:8080\"\n",
            "endpoint_picker.listen: 127.0.0.1:8080 is also the data port",
        ),
        (
            "listen = \"127.0.0.1:9090\"\n",
            "endpoint_picker.listen: 127.0.0.1:9090 is also the admin port",
        ),
        (
            "listen = \"127.0.0.1:9002\"\ntls = true\n",
            "endpoint_picker.tls: there is no certificate",
        ),
        ("fallbacks = 16\n", "endpoint_picker.fallbacks"),
        ("max_streams = 0\n", "endpoint_picker.max_streams"),
    ] {
        let told = complaints(picker(text)).join("\n");
        assert!(told.contains(what), "{text}: {told}");
    }
    for url in ["http://vllm-0.vllm:8000", "http://10.0.0.2:8000/base"] {
        let text = format!(
            "{ONE_WORKER}[[workers]]\nurl = {url:?}\n[endpoint_picker]\nlisten = \"127.0.0.1:9002\"\n"
        );
        let told = complaints(load_text(&text)).join("\n");
        assert!(
            told.contains("workers[1].url: gateways receive addresses"),
            "{told}"
        );
    }
}

#[test]
fn the_address_of_a_worker_is_that_of_its_url() {
    for (url, address) in [
        ("http://10.0.0.1:8000", Some("10.0.0.1:8000")),
        ("http://10.0.0.1/", Some("10.0.0.1:80")),
        ("https://[fd00::1]", Some("[fd00::1]:443")),
        ("http://vllm:8000", None),
        ("http://10.0.0.1:8000/engine", None),
    ] {
        let config = load_text(&format!("[[workers]]\nurl = {url:?}\n")).unwrap();
        let found = config.workers[0].endpoint().map(|address| address.to_string());
        assert_eq!(found.as_deref(), address, "{url}");
    }
}
