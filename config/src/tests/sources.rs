//! Precedence of file, environment and command line.

use std::collections::BTreeMap;

use policy::units::Millis;

use super::*;

#[test]
fn the_environment_wins_over_the_file_and_flags_over_both() {
    let text = format!("server.listen = \"1.1.1.1:1\"\nobjective.ttft_ms = 1\n{ONE_WORKER}");
    let variables = [
        ("TAILROUTE_SERVER__LISTEN", "2.2.2.2:2"),
        ("TAILROUTE_OBJECTIVE__TTFT_MS", "250"),
        ("TAILROUTE_ROUTING__WEIGHTS__LOCALITY", "2.5"),
        ("TAILROUTE_HINTS__IN_REQUEST", "false"),
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
    assert!(!config.hints.in_request);
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
