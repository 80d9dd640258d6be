//! What an operator may rely on.

use std::collections::{BTreeMap, BTreeSet};

use policy::units::{Millis, Tokens};
use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::schema::Schema;
use crate::tree::join;

const ONE_WORKER: &str = "[[workers]]\nurl = \"http://10.0.0.1:8000\"\n";

fn load_text(text: &str) -> Result<Config, Problems> {
    load(&Sources {
        file: Some(("t.toml", text)),
        ..Sources::default()
    })
}

fn load_under(text: &str, variables: &[(&str, &str)], overrides: Overrides) -> Result<Config, Problems> {
    let environment = variables
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    load(&Sources {
        file: Some(("t.toml", text)),
        environment,
        overrides,
    })
}

fn complaints(result: Result<Config, Problems>) -> Vec<String> {
    result
        .expect_err("this must be refused")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    assert_eq!(complaints(load_text(text)), expected);
}

/// Every key of the schema, as `section.key`, `[]` for a list's elements.
fn keys_of(schema: Schema<'_>, path: &str, keys: &mut BTreeSet<String>) {
    for (key, property) in schema.properties() {
        let path = join(path, key);
        match property.items() {
            Some(item) if item.kind() == "object" => keys_of(item, &format!("{path}[]"), keys),
            _ if property.kind() == "object" => keys_of(property, &path, keys),
            _ => drop(keys.insert(path)),
        }
    }
}

/// Every key that a JSON value has, in the same form.
fn keys_written(value: &Json, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        Json::Object(entries) => {
            entries
                .iter()
                .for_each(|(key, value)| keys_written(value, &join(path, key), keys));
        }
        Json::Array(elements) if elements.iter().any(Json::is_object) => {
            elements
                .iter()
                .for_each(|element| keys_written(element, &format!("{path}[]"), keys));
        }
        _ => drop(keys.insert(path.to_owned())),
    }
}

#[test]
fn a_url_is_all_that_has_to_be_written() {
    let config = load_text(ONE_WORKER).unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.workers[0].name, "10.0.0.1:8000");
    assert_eq!(config.workers[0].capacity, Tokens(500_000));
    assert_eq!(config.routing.settings(), policy::route::Settings::default());
    assert_eq!(config.objective.ttft, Millis(500.0));
    assert_eq!(config.routing.utilisation_window, Millis(60_000.0));
    assert_eq!(config.limits.drain_timeout.as_secs(), 130);
}

#[test]
fn the_example_has_every_key_and_no_other() {
    let schema = schema();
    let (mut expected, mut written) = (BTreeSet::new(), BTreeSet::new());
    keys_of(Schema::of(&schema), "", &mut expected);
    keys_written(&toml::from_str::<Json>(EXAMPLE).unwrap(), "", &mut written);
    assert_eq!(written, expected);
}

#[test]
fn the_example_holds_the_defaults_as_it_says() {
    let example: written::File = toml::from_str(EXAMPLE).unwrap();
    let mut as_default = written::File {
        workers: Vec::new(),
        ..example.clone()
    };
    as_default.objective.classes.clear();
    assert_eq!(as_default, written::File::default());
    for worker in &example.workers {
        let as_default = written::Worker {
            name: None,
            url: String::new(),
            models: None,
            ..worker.clone()
        };
        assert_eq!(as_default, written::Worker::default());
    }
    let config = load_text(EXAMPLE).unwrap();
    assert_eq!(config.workers.len(), 2);
    assert_eq!(config.workers[0].models, ["my-model"]);
}

#[test]
fn every_key_of_the_example_is_commented() {
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    for (at, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
    {
        // A comment may speak for the keys that follow it without a gap.
        let group = lines[..at].iter().rev().take_while(|line| !line.is_empty());
        assert!(
            group.into_iter().any(|line| line.starts_with('#')) || line.starts_with("url"),
            "{line}"
        );
    }
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_one() {
    refused(
        &format!("{ONE_WORKER}[routing]\npolcy = \"tail\"\n"),
        &["t.toml:4:1: routing.polcy: unknown key; did you mean `policy`?"],
    );
    refused(
        &format!("{ONE_WORKER}capacity-tokens = 5\n"),
        &["t.toml:3:1: workers[0].capacity-tokens: unknown key; did you mean `capacity_tokens`?"],
    );
    refused(
        &format!("{ONE_WORKER}[index]\nzzzzzzzzzz = 1\n"),
        &[
            "t.toml:4:1: index.zzzzzzzzzz: unknown key; known here: max_bytes, snapshot_interval_s, snapshot_max_age_s, snapshot_path",
        ],
    );
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest_one() {
    refused(
        &format!("{ONE_WORKER}[routing]\npolicy = \"cache-awre\"\n"),
        &[
            "t.toml:4:1: routing.policy: expected one of tail, round_robin, least_loaded, cache_aware, \
           cache_aware_smg, least_ttft, random, power_of_two, consistent_hash, prefix_hash, found \
           \"cache-awre\"; did you mean `cache_aware`?",
        ],
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "[server]\nlisten = \"localhost:80\"\n[limits]\nmax_body_bytes = \"32MiB\"\nretries = -1\n\
                [objective]\nshare = 1.5\n[[workers]]\nname = \"a b\"\nurl = \"gpu:8000\"\n[[workers]]\n";
    refused(
        text,
        &[
            "t.toml:4:1: limits.max_body_bytes: expected an integer of at least 1024, found \"32MiB\"",
            "t.toml:5:1: limits.retries: expected an integer of at least 0 and at most 16, found -1",
            "t.toml:7:1: objective.share: expected a number above 0 and below 1, found 1.5",
            "t.toml:11:1: workers[1].url: missing; expected a string",
            "t.toml:2:1: server.listen: expected an address and a port such as 127.0.0.1:8080, found \
             \"localhost:80\"; write 127.0.0.1:80",
            "t.toml:10:1: workers[0].url: no scheme; expected a url such as http://10.0.0.1:8000, found \
             \"gpu:8000\"; put http:// in front",
            "t.toml:9:1: workers[0].name: expected 1 to 64 visible ASCII characters without spaces",
        ],
    );
}

#[test]
fn text_that_is_no_toml_is_placed() {
    let told = complaints(load_text("[server\nlisten = 3"));
    assert!(told[0].starts_with("t.toml:1:8: not TOML: "), "{told:?}");
}

#[test]
fn a_calibration_file_is_where_a_worker_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.json");
    let with = |fit: &str| {
        std::fs::write(
            &path,
            format!(r#"{{"version":1,"fit":{{"cost":{fit}}},"model":"m"}}"#),
        )
        .unwrap();
        load_text(&format!(
            "{ONE_WORKER}calibration = {:?}\n",
            path.display().to_string()
        ))
    };
    let good = r#"{"alpha_ms_per_token":0.05,"beta_ms":7.5,"gamma_ms_per_token2":1e-7}"#;
    let worker = &with(good).unwrap().workers[0];
    assert!(worker.cost_is_known);
    assert_eq!((worker.cost.alpha_ms_per_token, worker.cost.beta_ms), (0.05, 7.5));
    let told = complaints(with(
        r#"{"alpha_ms_per_token":0.0,"beta_ms":7.5,"gamma_ms_per_token2":0.0}"#,
    ));
    assert!(
        told[0].ends_with("alpha must be above 0, beta and gamma at least 0"),
        "{told:?}"
    );
    let told = complaints(with(r#"{"alpha_ms_per_token":0.1}"#));
    assert!(
        told[0].contains("is no calibration: missing field `beta_ms`"),
        "{told:?}"
    );
    let told = complaints(load_text(&format!(
        "{ONE_WORKER}calibration = \"/nowhere/c.json\"\n"
    )));
    assert!(
        told[0].starts_with("t.toml:3:1: workers[0].calibration: /nowhere/c.json cannot be read"),
        "{told:?}"
    );
}

#[test]
fn a_calibration_and_numbers_beside_it_are_two_truths() {
    let text = format!("{ONE_WORKER}beta_ms = 5.0\ncalibration = \"/nowhere/c.json\"\n");
    assert!(complaints(load_text(&text))[0].contains("leave one of the two out"));
}

#[test]
fn a_cost_is_known_where_somebody_wrote_it() {
    let worker = |extra: &str| {
        load_text(&format!("{ONE_WORKER}{extra}"))
            .unwrap()
            .workers
            .remove(0)
    };
    assert!(!worker("").cost_is_known);
    assert!(worker("beta_ms = 20.0\n").cost_is_known);
}

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
        told[0].contains("`fast` is the name of another class already"),
        "{told:?}"
    );
    assert!(told[1].contains("`m` is of another class already"), "{told:?}");
    assert!(
        complaints(load_text(&format!("{ONE_WORKER}{}", class("a b", "m"))))[0].contains("visible ASCII")
    );
}

#[test]
fn a_key_written_twice_is_refused() {
    let told = complaints(load_text(&format!("{ONE_WORKER}url = \"http://b:1\"\n")));
    assert!(
        told[0].starts_with("t.toml:3:1: not TOML: duplicate key"),
        "{told:?}"
    );
}

#[test]
fn columns_count_characters() {
    refused(
        "workers = [{ models = [\"ä\"], url = \"http://a:1\", urk = 1 }]\n",
        &["t.toml:1:50: workers[0].urk: unknown key; did you mean `url`?"],
    );
}

#[test]
fn no_workers_is_a_problem_that_says_what_to_do() {
    refused(
        "",
        &[
            "t.toml:1:1: workers: no workers; expected at least one; add a [[workers]] section with a url, or give \
           --worker http://host:port",
        ],
    );
}

#[test]
fn names_and_urls_of_workers_are_unique() {
    refused(
        "[[workers]]\nurl = \"http://a:1/\"\n[[workers]]\nurl = \"http://a:1\"\n",
        &["t.toml:4:1: workers[1].url: http://a:1/ is the url of workers[0] already"],
    );
    refused(
        "[[workers]]\nname = \"b:1\"\nurl = \"http://a:1\"\n[[workers]]\nurl = \"http://b:1\"\n",
        &["t.toml:4:1: workers[1].name: `b:1` is the name of workers[0] already; give one of the two a name"],
    );
}

#[test]
fn urls_that_could_not_work_are_refused_with_the_remedy() {
    for (url, why) in [
        ("https://a:1", "https is not supported"),
        ("http://a:1/v1/", "leave /v1 out"),
        ("http://user:secret@a:1", "leave them out"),
        ("http://a:99999", "no usable port"),
        ("http://a:1/?x=1", "no query"),
        ("ftp://a:1", "not an http url"),
        ("", "not a url"),
        ("http://", "not a url"),
    ] {
        let told = complaints(load_text(&format!("[[workers]]\nurl = \"{url}\"\n")));
        assert!(told[0].contains(why), "{url}: {told:?}");
    }
}

#[test]
fn a_base_path_is_kept_without_its_last_slash() {
    let config = load_text("[[workers]]\nurl = \"http://a:1/engine/\"\n").unwrap();
    assert_eq!(config.workers[0].url.path(), "/engine");
    assert_eq!(config.workers[0].name, "a:1/engine");
}

#[test]
fn the_two_ports_differ() {
    refused(
        &format!("server.listen = \"127.0.0.1:9090\"\n{ONE_WORKER}"),
        &["t.toml:1:1: admin.listen: 127.0.0.1:9090 is the data port as well; expected a port of its own"],
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
fn numbers_that_are_none_are_refused() {
    for number in ["nan", "inf", "-1", "1979-05-27", "true"] {
        let told = complaints(load_text(&format!("{ONE_WORKER}beta_ms = {number}\n")));
        assert!(
            told[0].contains("workers[0].beta_ms: expected a number of at least 0"),
            "{told:?}"
        );
    }
    let told = complaints(load_text(&format!(
        "{ONE_WORKER}capacity_tokens = 99999999999999999999\n"
    )));
    assert!(
        told[0].contains("found an integer of more than 64 bits"),
        "{told:?}"
    );
}

#[test]
fn the_environment_wins_over_the_file_and_flags_over_both() {
    let text = format!("server.listen = \"1.1.1.1:1\"\nobjective.ttft_ms = 1\n{ONE_WORKER}");
    let variables = [
        ("TAILROUTE_SERVER__LISTEN", "2.2.2.2:2"),
        ("TAILROUTE_OBJECTIVE__TTFT_MS", "250"),
        ("TAILROUTE_ROUTING__WEIGHTS__LOCALITY", "2.5"),
        ("TAILROUTE_HINTS__ENABLED", "false"),
        ("TAILROUTE_CONFIG", "/etc/somebody/elses"),
        ("PATH", "/bin"),
    ];
    let overrides = Overrides {
        listen: Some("3.3.3.3:3".to_owned()),
        ..Overrides::default()
    };
    let config = load_under(&text, &variables, overrides).unwrap();
    assert_eq!(config.server.listen, "3.3.3.3:3".parse().unwrap());
    assert_eq!(config.objective.ttft, Millis(250.0));
    assert_eq!(config.routing.weights.locality, 2.5);
    assert!(!config.hints.enabled);
}

#[test]
fn a_misspelt_variable_is_blamed_by_its_name() {
    let variables = [
        ("TAILROUTE_SERVER__LISTN", "2.2.2.2:2"),
        ("TAILROUTE_LIMITS__RETRIES", "many"),
    ];
    assert_eq!(
        complaints(load_under(ONE_WORKER, &variables, Overrides::default())),
        [
            "environment variable TAILROUTE_LIMITS__RETRIES: limits.retries: expected an integer of at least 0 and \
             at most 16, found \"many\"",
            "environment variable TAILROUTE_SERVER__LISTN: server.listn: unknown key; did you mean `listen`?",
        ]
    );
    let told = complaints(load_under(
        ONE_WORKER,
        &[("TAILROUTE_WORKERS__0__URL", "x")],
        Overrides::default(),
    ));
    assert!(told[0].contains("TAILROUTE_WORKERS=url,url"), "{told:?}");
}

#[test]
fn a_replaced_list_of_workers_keeps_what_the_file_says_of_them() {
    let text = "[[workers]]\nurl = \"http://a:1\"\nbeta_ms = 7\n[[workers]]\nurl = \"http://b:1\"\n";
    let variables = [("TAILROUTE_WORKERS", "http://c:1, http://a:1")];
    let config = load_under(text, &variables, Overrides::default()).unwrap();
    let found: Vec<_> = config
        .workers
        .iter()
        .map(|worker| (worker.name.as_str(), worker.cost.beta_ms))
        .collect();
    assert_eq!(found, [("c:1", 20.0), ("a:1", 7.0)]);

    let overrides = Overrides {
        workers: vec!["http://d:x".to_owned()],
        ..Overrides::default()
    };
    let told = complaints(load_under(text, &variables, overrides));
    assert!(told[0].starts_with("flag --worker: workers[0].url: "), "{told:?}");
}

#[test]
fn the_schema_speaks_of_every_key() {
    fn described(schema: Schema<'_>, path: &str) {
        for (key, property) in schema.properties() {
            let path = join(path, key);
            assert!(
                property.text("description").is_some(),
                "{path} has no description"
            );
            described(property.items().unwrap_or(property), &path);
        }
    }
    let schema = schema();
    described(Schema::of(&schema), "");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn the_reference_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
        std::fs::write(path, reference()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        page,
        reference(),
        "run `TAILROUTE_BLESS=1 cargo test -p tailroute-config` and commit"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let missing = std::path::Path::new("/nowhere/at-all.toml");
    let error = load_file(Some(missing), BTreeMap::new(), Overrides::default()).unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/at-all.toml: cannot be read");
}

#[test]
fn a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tailroute.toml");
    std::fs::write(&path, ONE_WORKER).unwrap();
    let overrides = Overrides {
        policy: Some("round_robin".to_owned()),
        ..Overrides::default()
    };
    let config = load_file(Some(&path), BTreeMap::new(), overrides).unwrap();
    assert_eq!(config.routing.policy, PolicyName::RoundRobin);
}

/// Text that looks enough like a configuration to get past the parser now and then.
fn toml_ish() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        "[a-z_]{1,8}",
        prop::sample::select(vec![
            "url",
            "listen",
            "workers",
            "routing",
            "weights",
            "policy",
            "share",
            "max_bytes"
        ])
        .prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<bool>().prop_map(|flag| flag.to_string()),
        "\\PC{0,12}".prop_map(|text| format!("{text:?}")),
        Just("[{}, 3, [[]]]".to_owned()),
        Just("{ url = \"http://a:1\", name = 4 }".to_owned()),
    ];
    let line = prop_oneof![
        8 => (key.clone(), value).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => key.clone().prop_map(|key| format!("[{key}]")),
        2 => key.prop_map(|key| format!("[[{key}]]")),
        1 => "\\PC{0,20}",
    ];
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_or_refuse_without_a_reason(text in toml_ish()) {
        if let Err(problems) = load_text(&text) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(text in "(?s).{0,80}") {
        let _ = load_text(&text);
    }

    #[test]
    fn what_was_written_is_what_is_meant(
        ttft in 0.001f64..1e6, share in 0.001f64..0.999, capacity in 16u64..1 << 40, kappa in 1.0f64..100.0,
    ) {
        let text = format!(
            "{ONE_WORKER}capacity_tokens = {capacity}\n[objective]\nttft_ms = {ttft:?}\nshare = {share:?}\n\
             [routing]\nkappa_max = {kappa:?}\n"
        );
        let config = load_text(&text).unwrap();
        prop_assert_eq!(config.objective.ttft, Millis(ttft));
        prop_assert_eq!(config.objective.share, share);
        prop_assert_eq!(config.workers[0].capacity, Tokens(capacity));
        prop_assert_eq!(config.routing.kappa_max, kappa);
    }
}

#[test]
fn the_routing_section_alone_is_read_like_a_configuration_but_needs_no_workers() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "[routing]\nkappa_max = 20\n[routing.weights]\nlocality = 0.8\n",
    )
    .unwrap();
    let routing = load_routing(file.path()).unwrap();
    assert_eq!((routing.kappa_max, routing.weights.locality), (20.0, 0.8));
    assert_eq!(routing.weights.load, 1.0, "what is left out has its default");
    for (text, expected) in [
        (
            "[routing.weights]\nlocalty = 0.8\n",
            ":2:1: routing.weights.localty: unknown key; did you mean `locality`?",
        ),
        (
            "[routing.weights]\nlocality = -1\n",
            ":2:1: routing.weights.locality: expected a number of at least 0",
        ),
        ("[routing\n", "not TOML"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let refused = load_routing(file.path()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn an_endpoint_with_ranks_is_a_worker_for_each_of_them() {
    let file = r#"
        [[workers]]
        url = "http://a:1"
        name = "big"
        ranks = 3
        kv_events = "tcp://a:7000"
        kv_events_replay = "tcp://a:8000"
        [[workers]]
        url = "http://b:1"
    "#;
    let workers = load_text(file).unwrap().workers;
    let names: Vec<_> = workers
        .iter()
        .map(|worker| (worker.name.as_str(), worker.rank))
        .collect();
    let expected = [
        ("big/dp0", Some(0)),
        ("big/dp1", Some(1)),
        ("big/dp2", Some(2)),
        ("b:1", None),
    ];
    assert_eq!(names, expected);
    let at = KvEvents::At {
        endpoint: "tcp://a:7002".to_owned(),
        replay: Some("tcp://a:8002".to_owned()),
    };
    assert_eq!((&workers[2].kv_events, &workers[2].url), (&at, &workers[0].url));
}
