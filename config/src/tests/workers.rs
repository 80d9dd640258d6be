//! Tests of `[[workers]]`.

use super::*;

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
        told[0].ends_with("alpha must be above 0, beta, gamma and the floor at least 0"),
        "{told:?}"
    );
    let told = complaints(with(r#"{"alpha_ms_per_token":0.1}"#));
    assert!(
        told[0].contains("is not a calibration file: missing field `beta_ms`"),
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
    assert!(complaints(load_text(&text))[0].contains("remove one of the two"));
}

#[test]
fn a_capacity_is_known_where_somebody_wrote_it() {
    let worker = |lines: &str| {
        let text = format!("[[workers]]\nurl = \"http://a:1\"\n{lines}");
        load_text(&text).unwrap().workers.remove(0)
    };
    let (asked, known) = (worker(""), worker("capacity_tokens = 500_000\n"));
    assert_eq!(asked.capacity, known.capacity);
    assert!(!asked.capacity_is_known && known.capacity_is_known);
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
fn no_workers_is_a_problem_that_says_what_to_do() {
    refused(
        "",
        &[
            "t.toml:1:1: workers: no workers; expected at least one; add a [[workers]] section with a url, give \
           --worker http://host:port, or set up [discovery]",
        ],
    );
}

#[test]
fn names_and_urls_of_workers_are_unique() {
    refused(
        "[[workers]]\nurl = \"http://a:1/\"\n[[workers]]\nurl = \"http://a:1\"\n",
        &["t.toml:4:1: workers[1].url: http://a:1/ is already the url of workers[0]"],
    );
    refused(
        "[[workers]]\nname = \"b:1\"\nurl = \"http://a:1\"\n[[workers]]\nurl = \"http://b:1\"\n",
        &["t.toml:4:1: workers[1].name: `b:1` is already the name of workers[0]; give one of the two a name"],
    );
}

#[test]
fn urls_that_could_not_work_are_refused_with_the_remedy() {
    for (url, why) in [
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

#[test]
fn a_worker_is_not_at_a_port_of_the_router() {
    let ports = "[server]\nlisten = \"127.0.0.1:7001\"\n[admin]\nlisten = \"0.0.0.0:7002\"\n[endpoint_picker]\nlisten = \"127.0.0.1:7003\"\n";
    for (port, name) in [(7001, "data"), (7002, "admin"), (7003, "endpoint picker's")] {
        let text = format!("{ports}{ONE_WORKER}[[workers]]\nurl = \"http://127.0.0.1:{port}\"\n");
        let told = complaints(load_text(&text)).join("\n");
        let expected = format!(
            "workers[1].url: \"http://127.0.0.1:{port}\" is this router's own {name} port; expected the address of an engine"
        );
        assert!(told.contains(&expected), "{told}");
    }
    let text = "[server]\nlisten = \"127.0.0.1:7001\"\n[[workers]]\nurl = \"http://127.0.0.1:7004\"\n";
    assert!(load_text(text).is_ok());
}
