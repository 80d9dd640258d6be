//! Tests of the sources of workers and the settings of discovered ones.

use std::path::Path;

use policy::units::Tokens;

use super::*;

const PREFIX: &str = "worker.tailroute.io/";

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    pairs.iter().map(owned).collect()
}

fn found(config: &Config, pairs: &[(&str, &str)]) -> Result<Vec<Worker>, Vec<String>> {
    let template = &config.discovery.template;
    let workers = template.workers("pod-0", "http://10.0.0.9:8000", &annotations(pairs), PREFIX);
    workers.map_err(|problems| {
        let told = problems.iter().map(|problem| {
            let hint = problem.hint.as_deref().unwrap_or_default();
            format!("{}: {} {hint}", problem.path, problem.what)
                .trim_end()
                .to_owned()
        });
        told.collect()
    })
}

#[test]
fn without_workers_it_is_enough_that_they_are_found_somewhere() {
    for text in [
        "[discovery.kubernetes]\nservices = [\"vllm\"]\n",
        "[discovery.kubernetes]\npods = \"app=vllm\"\n",
        "[discovery.dns]\nsrv = [\"_http._tcp.vllm\"]\n",
        "[discovery.file]\npath = \"/etc/tailroute/workers.toml\"\n",
    ] {
        let config = load_text(text).unwrap();
        assert!(config.workers.is_empty() && config.discovery.is_on(), "{text}");
    }
    assert!(!load_text(ONE_WORKER).unwrap().discovery.is_on());
}

#[test]
fn what_is_wrong_with_a_source_is_named() {
    let cases: [(&str, &[&str]); 9] = [
        (
            "[discovery.kubernetes]\nservices = [\"VLLM\"]\nport = \"80000\"\n",
            &[
                "t.toml:2:13: discovery.kubernetes.services[0]: expected a name of lower case letters, digits, `-` and `.`, found \"VLLM\"",
                "t.toml:3:1: discovery.kubernetes.port: expected a number from 1 to 65535, or a port's name such as http, found \"80000\"",
            ],
        ),
        (
            "[discovery.kubernetes]\nservices = [\"a\"]\npods = \"app=a\"\n",
            &[
                "t.toml:3:1: discovery.kubernetes.pods: is set together with discovery.kubernetes.services, which \
                 selects the same pods; remove one of the two",
            ],
        ),
        (
            "[discovery.kubernetes]\nservices = [\"a\"]\ntoken_file = \"/t\"\n",
            &[
                "t.toml:3:1: discovery.kubernetes.token_file: applies to discovery.kubernetes.api_url, which is not set; remove it: in a cluster the service account's own file is read",
            ],
        ),
        (
            "[discovery.kubernetes]\nservices = [\"a\"]\napi_url = \"http://a:1\"\ntoken_file = \"/t\"\n",
            &[
                "t.toml:4:1: discovery.kubernetes.token_file: is set with an api_url that is not `https`, so it would be sent unencrypted; write https, or leave it out",
            ],
        ),
        (
            "[discovery.dns]\nsrv = [\"a..b\"]\nserver = \"10.0.0.1\"\n",
            &[
                "t.toml:2:8: discovery.dns.srv[0]: expected a name such as _http._tcp.vllm.inference.svc.cluster.local, found \"a..b\"",
                "t.toml:3:1: discovery.dns.server: expected an address and a port such as 127.0.0.1:8080, found \"10.0.0.1\"",
            ],
        ),
        (
            "[discovery.dns]\nsrv = [\"a\", \"a\"]\n",
            &["t.toml:2:13: discovery.dns.srv[1]: \"a\" is listed twice"],
        ),
        (
            "[discovery.worker]\nurl = \"http://a\"\n[discovery.dns]\nsrv = [\"a\"]\n",
            &[
                "t.toml:2:1: discovery.worker.url: unknown key; known here: alpha_ms_per_token, api_key_file, beta_ms, block_size_tokens, cache_policy, calibration, capacity_tokens, dialect, floor_ms, gamma_ms_per_token2, kv_events, models, priority, ranks",
            ],
        ),
        (
            "[discovery.worker]\ncapacity_tokens = 8\nkv_events = \"auto\"\n[discovery.dns]\nsrv = [\"a\"]\n",
            &["t.toml:2:1: discovery.worker.capacity_tokens: 8 tokens are less than one block of 16"],
        ),
        (
            "[discovery.worker]\nkv_events = \"tcp://a:1\"\n[discovery.dns]\nsrv = [\"a\"]\n",
            &[
                "t.toml:2:1: discovery.worker.kv_events: expected auto or off, found \"tcp://a:1\"; a publisher belongs to one worker: use auto, or list the workers in discovery.file",
            ],
        ),
    ];
    for (text, expected) in cases {
        let lines = format!("{text}{ONE_WORKER}");
        assert_eq!(complaints(load_text(&lines)), expected, "{text}");
    }
}

#[test]
fn a_found_worker_is_as_the_template_says_and_its_annotations_say_otherwise() {
    let text =
        "[discovery.worker]\ncapacity_tokens = 1_000\nmodels = [\"m\"]\n[discovery.dns]\nsrv = [\"a\"]\n";
    let config = load_text(text).unwrap();
    let plain = found(&config, &[]).unwrap().remove(0);
    assert_eq!((plain.name.as_str(), plain.capacity), ("pod-0", Tokens(1_000)));
    assert_eq!((plain.models, plain.cost_is_known), (vec!["m".to_owned()], false));
    let said = found(
        &config,
        &[
            ("capacity-tokens", "480_000"),
            ("models", "a, b"),
            ("dialect", "vllm_xargs"),
            ("beta-ms", "12.5"),
            ("ranks", "2"),
        ],
    );
    let said = said.unwrap();
    assert_eq!(said.len(), 2);
    assert_eq!((said[1].name.as_str(), said[1].rank), ("pod-0/dp1", Some(1)));
    assert_eq!(
        (said[0].capacity, said[0].dialect),
        (Tokens(480_000), Dialect::VllmXargs)
    );
    assert_eq!(
        (&said[0].models, said[0].cost_is_known),
        (&vec!["a".to_owned(), "b".to_owned()], true)
    );
}

#[test]
fn annotations_that_are_wrong_are_named_and_none_names_a_file_or_another_address() {
    let config = load_text("[discovery.dns]\nsrv = [\"a\"]\n").unwrap();
    for (name, text, expected) in [
        (
            "capacity-tokens",
            "lots",
            "worker.tailroute.io/capacity-tokens: expected an integer of at least 1, found \"lots\"",
        ),
        (
            "capcity-tokens",
            "1",
            "worker.tailroute.io/capcity-tokens: not an annotation that is read did you mean `worker.tailroute.io/capacity-tokens`?",
        ),
        (
            "dialect",
            "klingon",
            "worker.tailroute.io/dialect: expected one of auto, tailroute, vllm_xargs, kv_hints, tensorrt_llm, none, found \"klingon\"",
        ),
    ] {
        assert_eq!(found(&config, &[(name, text)]).unwrap_err(), [expected]);
    }
    let told = found(&config, &[("capacity-tokens", "8")]).unwrap_err();
    assert_eq!(
        told,
        ["worker.tailroute.io/capacity-tokens: 8 tokens are less than one block of 16"]
    );
    for name in [
        "url",
        "name",
        "api-key-file",
        "calibration",
        "kv-events",
        "kv-events-replay",
    ] {
        let told = found(&config, &[(name, "/etc/passwd")]).unwrap_err();
        assert!(told[0].contains("not an annotation that is read"), "{told:?}");
    }
}

#[test]
fn a_file_of_workers_is_toml_or_json_and_its_mistakes_have_places() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let short = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
        read_workers(Path::new(&path)).map_err(|error| short(error.to_string()))
    };
    let toml = read("w.toml", "[[workers]]\nurl = \"http://a:1\"\nranks = 2\n").unwrap();
    assert_eq!(toml[1].name, "a:1/dp1");
    let json = read(
        "w.json",
        r#"{"workers": [{"url": "http://b:1", "capacity_tokens": 1000}]}"#,
    )
    .unwrap();
    assert_eq!(json[0].capacity, Tokens(1_000));
    assert_eq!(read("w.toml", "workers = []\n").unwrap(), []);
    for (name, text, expected) in [
        ("w.toml", "", "w.toml:1:1: workers: missing; expected a list"),
        (
            "w.toml",
            "workers = [\n",
            "w.toml:1:12: not TOML: unclosed array, expected `]`",
        ),
        (
            "w.toml",
            "[[workers]]\nurll = \"http://a:1\"\n",
            "w.toml:1:1: workers[0].url: missing; expected a string",
        ),
        (
            "w.json",
            "{\"workers\": [\n",
            "w.json:2:0: not JSON: EOF while parsing a list at line 2 column 0",
        ),
        ("w.json", "[]", "w.json:1:1: expected a section, found a list"),
        (
            "w.json",
            r#"{"workers": [{"url": "ftp://a"}]}"#,
            "w.json:1:1: workers[0].url: not an http url; expected a url such as http://10.0.0.1:8000, found \"ftp://a\"",
        ),
    ] {
        let told = read(name, text).unwrap_err();
        assert!(told.starts_with(expected), "{text}: {told}");
    }
    assert!(
        read_workers(Path::new("/nowhere/w.toml"))
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
}
