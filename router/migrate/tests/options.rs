//! Every option of the real parsers is in a table, and everything else is reported.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

use std::path::Path;

use migrate::{Error, Input, MOST_BYTES, Migration, Source, migrate, options};
use proptest::prelude::*;

fn listed(name: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/flags")
        .join(name);
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn of_words(words: &[&str], from: Option<Source>) -> Result<Migration, Error> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    migrate(Input::Words(&words), from)
}

fn of_text(text: &str, from: Option<Source>) -> Result<Migration, Error> {
    migrate(Input::Text { name: "input", text }, from)
}

fn loads(migration: &Migration) -> bool {
    let sources = config::Sources {
        file: Some(("tailroute.toml", &migration.toml)),
        ..config::Sources::default()
    };
    config::load(&sources).is_ok()
}

#[test]
fn every_option_of_the_real_parsers_is_in_the_table() {
    for source in Source::ALL {
        let known: Vec<&str> = options(source).map(|(name, _)| name).collect();
        let missing: Vec<String> = listed(&format!("{source}.txt"))
            .into_iter()
            .filter(|name| !known.contains(&name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{source}: {missing:?}");
    }
}

#[test]
fn no_option_stands_twice_in_a_table() {
    for source in Source::ALL {
        let mut names: Vec<&str> = options(source).map(|(name, _)| name).collect();
        names.sort_unstable();
        let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{source}: {twice:?}");
    }
}

/// Each key that a table names exists, since `docs/configuration.md` has it.
#[test]
fn the_keys_of_the_tables_exist() {
    let reference = config::schema().to_string();
    for source in Source::ALL {
        for (name, keys) in options(source).filter(|(_, keys)| !keys.is_empty()) {
            for key in keys.split(", ") {
                let last = key.rsplit('.').next().unwrap();
                assert!(reference.contains(&format!("\"{last}\"")), "{name}: {key}");
            }
        }
    }
}

#[test]
fn every_key_of_the_chart_becomes_a_flag() {
    for key in listed("production-stack-chart.txt") {
        if key == "extraArgs" {
            continue;
        }
        let (outer, inner) = key.split_once('.').unwrap_or((&key, ""));
        let value = if key.ends_with("ecure") { "true" } else { "9000" };
        let value = match key.as_str() {
            "serviceDiscovery" => "k8s",
            "routingLogic" => "roundrobin",
            _ => value,
        };
        let line = match inner {
            "" => format!("  {outer}: \"{value}\"\n"),
            inner => format!("  {outer}: {{{inner}: {value}}}\n"),
        };
        let migration = of_text(&format!("routerSpec:\n{line}"), None).unwrap();
        let as_property = format!("routerSpec.{outer}");
        assert!(
            !migration
                .warnings
                .iter()
                .any(|line| line.starts_with(&as_property)),
            "{key}"
        );
    }
}

#[test]
fn unknown_flags_are_listed() {
    for source in [Source::SglangRouter, Source::VllmRouter, Source::ProductionStack] {
        let migration = of_words(&["--port", "80", "--no-such-flag", "a", "b"], Some(source)).unwrap();
        let expected = format!(
            "--no-such-flag a b: not a flag of {source} that is known here; see docs/configuration.md"
        );
        assert!(migration.warnings.contains(&expected), "{:?}", migration.warnings);
    }
    let migration = of_text(
        "server {\n no_such a;\n location / { proxy_pass http://a:1; }\n}",
        None,
    )
    .unwrap();
    assert!(
        migration.warnings[0].starts_with("input:2: no_such a: "),
        "{:?}",
        migration.warnings
    );
}

#[test]
fn the_router_is_detected_by_its_program_or_its_flags() {
    for (words, source) in [
        (
            &["python", "-m", "sglang_router.launch_router", "--port", "1"][..],
            Source::SglangRouter,
        ),
        (
            &["smg", "launch", "--worker-urls", "http://a:1"],
            Source::SglangRouter,
        ),
        (
            &["vllm-router", "--worker-urls", "http://a:1"],
            Source::VllmRouter,
        ),
        (
            &["vllm-router", "--routing-logic", "roundrobin", "--port", "1"],
            Source::ProductionStack,
        ),
        (
            &[
                "docker",
                "run",
                "--net",
                "host",
                "vllm/vllm-router:nightly",
                "--port",
                "1",
            ],
            Source::VllmRouter,
        ),
        (
            &["--static-backends", "http://a:1", "--port", "1"],
            Source::ProductionStack,
        ),
        (&["--vllm-pd-disaggregation", "--port", "1"], Source::VllmRouter),
    ] {
        assert_eq!(of_words(words, None).unwrap().source, source, "{words:?}");
    }
    assert_eq!(of_words(&["haproxy", "-f", "x"], None), Err(Error::Unknown));
    assert_eq!(of_words(&["--nothing-known"], None), Err(Error::Unknown));
    assert_eq!(of_text("", None), Err(Error::Unknown));
}

#[test]
fn errors_name_the_flag_or_the_line() {
    for (words, expected) in [
        (
            &["smg", "--port", "http"][..],
            "flag --port: expected a port from 0 to 65535, found \"http\"",
        ),
        (&["smg", "--port"], "flag --port: expected a value"),
        (&["smg", "--enable-igw=1"], "flag --enable-igw: takes no value"),
        (
            &["smg", "--cb-failure-threshold", "many"],
            "flag --cb-failure-threshold: expected a number, found \"many\"",
        ),
        (
            &["smg", "--port", "80", "90"],
            "argument \"90\": expected a flag; several values go to one flag only where it takes a list",
        ),
        (
            &["smg", "--log-level", "loud"],
            "flag --log-level: expected a level such as info or warning",
        ),
        (
            &["smg", "--tenant-api-key", "secret"],
            "flag --tenant-api-key: expected TENANT:KEY",
        ),
        (
            &[
                "vllm-router",
                "--routing-logic",
                "session",
                "--service-discovery",
                "dns",
            ],
            "flag --service-discovery: expected static, k8s or external-only",
        ),
        (
            &[
                "vllm-router",
                "--service-discovery",
                "static",
                "--static-backends",
                "http://a:1,http://b:1",
                "--static-models",
                "m",
            ],
            "flag --static-models: 1 models for 2 backends; expected one for each",
        ),
    ] {
        assert_eq!(of_words(words, None).unwrap_err().to_string(), expected);
    }
    for (text, expected) in [
        (
            "smg \\\n --port 'a",
            "input:1: a quote or a `\\` at the end of the line is not closed",
        ),
        (
            "smg --port 1\nsmg --port 2\n",
            "input:1 and input:2 both start a router; migrate them one at a time",
        ),
        ("kind: Deployment\nspec: [a\nb: c\n", "input:"),
        (
            "kind: Deployment\nspec:\n  replicas: {{ .Values.replicas }}\n  a: [\n",
            "input:3: not YAML: ",
        ),
        (
            "upstream a {\n  server b:1\n}\nserver { location / { proxy_pass http://a; } }",
            "input:2: server: expected `;` at its end",
        ),
        (
            "upstream a { server b:1; }",
            "input: no `proxy_pass`, so that no workers are named",
        ),
        (
            "server { location / {\n proxy_pass http://$x; } }",
            "input:2: proxy_pass: the host is a variable; name the upstream itself",
        ),
        (
            "location / { proxy_pass http://a:1;\nproxy_read_timeout soon; }",
            "input:2: proxy_read_timeout: expected a time such as 60s",
        ),
    ] {
        let error = of_text(text, None).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(
        of_words(&["--port", "1"], Some(Source::Nginx)),
        Err(Error::NotNginx)
    );
}

#[test]
fn an_input_is_bounded() {
    let long = " ".repeat(MOST_BYTES as usize + 1);
    assert_eq!(of_text(&long, None), Err(Error::TooLong));
    assert_eq!(of_words(&["smg", &long], None), Err(Error::TooLong));
}

#[test]
fn values_that_tailroute_refuses_are_taken_out_with_the_reason() {
    let words = [
        "smg",
        "--worker-urls",
        "http://a:1",
        "not a url",
        "http://b:1/x?y",
        "--retry-max-retries",
        "100",
        "--cache-threshold",
        "7",
        "--tls-cert-path",
        "/only/the/cert.pem",
        "--port",
        "29000",
    ];
    let migration = of_words(&words, None).unwrap();
    assert!(loads(&migration), "{}", migration.toml);
    for key in [
        "workers[",
        "limits.retries",
        "match_threshold",
        "tls.key_file",
        "admin.listen",
    ] {
        assert!(
            migration.warnings.iter().any(|line| line.contains(key)),
            "{key}: {:#?}",
            migration.warnings
        );
    }
}

#[test]
fn without_workers_the_configuration_loads_and_says_so() {
    let migration = of_words(&["smg", "--enable-igw"], None).unwrap();
    assert!(loads(&migration));
    assert!(
        migration
            .warnings
            .iter()
            .any(|line| line.starts_with("workers: "))
    );
    assert!(migration.toml.contains("path = \"workers.toml\""));
}

#[test]
fn flags_of_the_server_launcher_lose_their_prefix() {
    let words = [
        "python",
        "-m",
        "sglang_router.launch_server",
        "--router-policy",
        "round_robin",
        "--dp-size",
        "4",
    ];
    let migration = of_words(&words, None).unwrap();
    assert!(
        migration
            .toml
            .contains("# --router-policy round_robin\npolicy = \"round_robin\"")
    );
    assert!(
        migration
            .warnings
            .iter()
            .any(|line| line.starts_with("--dp-size 4: "))
    );
}

#[test]
fn a_compose_file_is_a_manifest() {
    let text = "services:\n  web:\n    image: nginx\n    command: nginx -g x\n  router:\n    image: vllm/vllm-router:1\n    command: >\n      --worker-urls http://a:1 http://b:1 --policy random\n";
    let migration = of_text(text, None).unwrap();
    assert_eq!(migration.source, Source::VllmRouter);
    assert!(migration.toml.contains("policy = \"random\""));
}

fn word() -> impl Strategy<Value = String> {
    let names: Vec<&str> = Source::ALL
        .into_iter()
        .flat_map(|source| options(source).map(|(name, _)| name))
        .collect();
    prop_oneof![
        4 => proptest::sample::select(names).prop_map(str::to_owned),
        2 => "[0-9]{1,20}(\\.[0-9]{1,3})?",
        1 => "-?[0-9]{1,3}",
        1 => "https?://[a-z0-9.]{1,8}(:[0-9]{1,6})?(/v1)?",
        1 => proptest::sample::select(vec!["smg", "vllm-router", "python", "-m", "vllm_router.app", "cache_aware", "k8s", "{", "}", ";", "upstream a", "proxy_pass http://a", "server", "location /", "spec:\n", "args: [", "]", "\\\n", "\n", "'", "max_fails=3"]).prop_map(str::to_owned),
        1 => ".{0,12}",
    ]
}

proptest! {
    #[test]
    fn no_words_panic_and_every_result_loads(words in proptest::collection::vec(word(), 0..16), from in 0..5usize) {
        let from = Source::ALL.get(from).copied();
        if let Ok(migration) = migrate(Input::Words(&words), from) {
            prop_assert!(loads(&migration), "{}", migration.toml);
        }
    }

    #[test]
    fn no_text_panics_and_every_result_loads(words in proptest::collection::vec(word(), 0..24), from in 0..5usize) {
        let text = words.join(" ");
        if let Ok(migration) = of_text(&text, Source::ALL.get(from).copied()) {
            prop_assert!(loads(&migration), "{}", migration.toml);
        }
    }
}
