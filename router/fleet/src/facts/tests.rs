use std::collections::BTreeMap;
use std::sync::Arc;

use config::UnlistedModels::{self, Pass, Refuse};
use policy::ids::WorkerId;
use serde_json::json;

use super::*;
use crate::dialect::Tailroute;
use crate::eligibility::Eligibility;
use crate::health::Probe;
use crate::overrides::AdminState;
use crate::{Fleet, Worker};

const AT: Millis = Millis(1_000.0);
const PAUSES: [Millis; 2] = [Millis(2_000.0), Millis(4_000.0)];

fn config() -> config::Config {
    let overrides = config::Overrides {
        workers: vec!["http://127.0.0.1:9".to_owned()],
        ..config::Overrides::default()
    };
    config::load_file(None, BTreeMap::new(), overrides).unwrap()
}

fn facts() -> EngineFacts {
    EngineFacts::new(&config().workers[0], Millis::ZERO)
}

fn listed(names: &[&str]) -> Listed {
    Listed::of(names.iter().map(|name| json!({ "id": name })).collect())
}

/// Returns a list with SGLang's adapter `a` of the base `m`.
fn with_adapter() -> Listed {
    Listed::of(vec![json!({ "id": "m" }), json!({ "id": "a", "parent": "m" })])
}

/// Returns a fleet of ready workers, each with a list of models or none.
fn fleet(lists: &[Option<&[&str]>]) -> Fleet {
    let config = config();
    let workers = lists.iter().zip(0..).map(|(models, slot)| {
        let worker = Worker::new(WorkerId(slot), config.workers[0].clone(), &config, Millis::ZERO);
        if let Some(models) = models {
            worker.facts.learn_models(AT, listed(models));
        }
        worker.observe_health(AT, Probe::Well);
        Arc::new(worker)
    });
    Fleet::new(workers.collect())
}

fn eligible(fleet: &Fleet, model: &str, unlisted: UnlistedModels) -> Vec<usize> {
    let workers = fleet.workers();
    let eligible = Eligibility::of(workers.iter(), model, unlisted);
    let slots = workers.iter().enumerate();
    slots
        .filter_map(|(slot, worker)| eligible.admits(worker).then_some(slot))
        .collect()
}

#[test]
fn a_name_is_served_as_the_list_and_the_form_of_the_name_say() {
    for (model, expected) in [
        ("m", Serves::Yes),
        ("a", Serves::Yes),
        ("m:a", Serves::Yes),
        ("m:other", Serves::Base),
        ("m:", Serves::No),
        (":a", Serves::No),
        ("other:a", Serves::No),
        ("M", Serves::No),
        ("m:a:b", Serves::Base),
    ] {
        assert_eq!(with_adapter().serves(model), expected, "{model}");
    }
    let colons = listed(&["llama3:8b"]);
    assert_eq!(colons.serves("llama3:8b"), Serves::Yes);
    assert_eq!(colons.serves("llama3:8b:ad"), Serves::Base);
    assert_eq!(colons.serves("llama3"), Serves::No);
}

#[test]
fn a_list_is_bounded_in_number_and_names() {
    let ids = |ids: &[String]| {
        let cards: Vec<_> = ids.iter().map(|id| json!({ "id": id })).collect();
        let answer = json!({ "object": "list", "data": cards }).to_string();
        Listed::read(answer.as_bytes()).unwrap().names().len()
    };
    let many: Vec<String> = (0..1_500).map(|at| format!("m{at}")).collect();
    assert_eq!(ids(&many), 1024);
    assert_eq!(ids(&["m".repeat(300), "a\nb".to_owned(), "fit".to_owned()]), 1);
    let none = br#"{"data":[{"id":5},7,{}]}"#;
    for unread in [
        &none[..],
        br#"{"data":[]}"#,
        br#"{"data":7}"#,
        b"{}",
        b"<html>",
        b"",
        b"[]",
        b"\xff",
    ] {
        assert_eq!(Listed::read(unread), None);
    }
}

#[test]
fn a_model_goes_to_those_that_are_known_to_serve_it_before_those_that_may() {
    let mixed = fleet(&[Some(&["m"]), Some(&["n"]), None, Some(&["m", "n"])]);
    for (model, expected) in [
        ("m", vec![0, 3]),
        ("n", vec![1, 3]),
        // Only the base is known.
        ("m:a", vec![0, 3]),
        // In no list: the unknown one may have it.
        ("x", vec![2]),
        ("", vec![0, 1, 2, 3]),
    ] {
        assert_eq!(eligible(&mixed, model, Refuse), expected, "{model:?}");
        assert!(!mixed.lacks(model, Refuse) || model.is_empty(), "{model:?}");
    }
    // Where the adapter is listed, the base alone does not count.
    mixed.workers()[3].facts.learn_models(AT, with_adapter());
    assert_eq!(eligible(&mixed, "m:a", Refuse), [3]);
}

#[test]
fn a_worker_that_is_down_is_still_known_to_serve_its_model() {
    let fleet = fleet(&[Some(&["m"]), None]);
    for _ in 0..3 {
        fleet.workers()[0].observe_health(AT, Probe::Bad);
    }
    assert!(!fleet.workers()[0].is_ready());
    assert_eq!(eligible(&fleet, "m", Refuse), [0]);
    fleet.workers()[0].set_admin_state(AdminState::Leaving);
    let has_unknown = eligible(&fleet, "m", Refuse).contains(&1);
    assert!(has_unknown, "one that leaves keeps no request from another");
}

#[test]
fn an_unlisted_model_is_refused_or_passed_on() {
    let all_known = fleet(&[Some(&["m"]), Some(&["n"])]);
    assert!(all_known.lacks("default", Refuse) && !all_known.lacks("default", Pass));
    assert!(eligible(&all_known, "default", Refuse).is_empty());
    assert_eq!(eligible(&all_known, "default", Pass), [0, 1]);
    assert_eq!(
        eligible(&all_known, "m", Pass),
        [0],
        "a listed one goes where it is"
    );
    // An engine that denied it is not asked again for a while.
    all_known.workers()[0].facts.refute(AT, "default");
    assert_eq!(eligible(&all_known, "default", Pass), [1]);
    all_known.workers()[1].facts.refute(AT, "default");
    assert!(all_known.lacks("default", Pass));
}

#[test]
fn a_denial_holds_until_a_list_without_the_name_comes_or_a_while_has_passed() {
    let fleet = fleet(&[Some(&["m"]), Some(&["m"])]);
    let facts = &fleet.workers()[0].facts;
    facts.refute(AT, "m");
    assert_eq!(
        (facts.serves("m"), eligible(&fleet, "m", Refuse)),
        (Serves::Denied, vec![1])
    );
    facts.learn_models(Millis(2_000.0), listed(&["m"]));
    assert_eq!(
        facts.serves("m"),
        Serves::Denied,
        "the list still contradicts the engine"
    );
    facts.learn_models(Millis(40_000.0), listed(&["m"]));
    assert_eq!(facts.serves("m"), Serves::Yes);
    facts.refute(Millis(40_000.0), "m");
    facts.learn_models(Millis(40_001.0), listed(&["n"]));
    facts.learn_models(Millis(40_002.0), listed(&["m", "n"]));
    assert_eq!(facts.serves("m"), Serves::Yes, "it was loaded again");
    for at in 0..100 {
        facts.refute(AT, &format!("junk-{at}"));
    }
    assert!(
        facts.is_refuted("junk-99") && !facts.is_refuted("junk-0"),
        "bounded"
    );
}

#[test]
fn an_unread_list_is_neither_yes_nor_no_and_erases_nothing() {
    let facts = facts();
    facts.begin(AT);
    assert!(facts.is_due(Query::Models, AT) && facts.is_due(Query::Settings, AT));
    assert_eq!(facts.serves("m"), Serves::Unknown);
    facts.asked(Query::Models);
    assert!(facts.failed(Query::Models, AT, "answered 401".to_owned(), PAUSES));
    assert_eq!(facts.serves("m"), Serves::Unknown);
    facts.asked(Query::Models);
    facts.learn_models(AT, listed(&["m"]));
    let failure = facts.answered(Query::Models, AT, PAUSES[0]).unwrap();
    assert_eq!((failure.error.as_str(), failure.since), ("answered 401", AT));
    for at in 1..30 {
        let now = Millis(f64::from(at) * 2_000.0);
        facts.asked(Query::Models);
        let is_first = facts.failed(Query::Models, now, "timed out".to_owned(), PAUSES);
        assert_eq!(is_first, at == 1, "logged once");
        assert_eq!((facts.serves("m"), facts.serves("n")), (Serves::Yes, Serves::No));
    }
    let report = &facts.report()[0];
    assert_eq!(report.fact, Fact::Models);
    assert_eq!(report.failing.as_ref().unwrap().since, Millis(2_000.0));
    assert_eq!(report.known.as_ref().unwrap().confirmed, AT);
}

#[test]
fn a_query_is_repeated_after_its_interval_and_after_growing_pauses_up_to_a_bound() {
    let facts = facts();
    assert_eq!(
        (facts.next(), facts.doubt(AT)),
        (None, None),
        "paused until it begins"
    );
    facts.begin(AT);
    facts.asked(Query::Settings);
    facts.answered(Query::Settings, AT, Millis(30_000.0));
    let mut now = AT;
    let mut pauses = Vec::new();
    for _ in 0..4 {
        facts.asked(Query::Models);
        facts.failed(Query::Models, now, String::new(), PAUSES);
        let next = facts.next().unwrap();
        pauses.push((next - now).0);
        now = next;
    }
    assert_eq!(pauses, [2_000.0, 4_000.0, 4_000.0, 4_000.0]);
    facts.asked(Query::Models);
    facts.answered(Query::Models, now, PAUSES[0]);
    assert_eq!(facts.next(), Some(now + PAUSES[0]));
    facts.pause();
    assert!(facts.next().is_none() && !facts.is_due(Query::Models, Millis(1e9)));
}

#[test]
fn doubts_are_followed_at_once_and_are_limited_in_number() {
    let facts = facts();
    facts.begin(AT);
    let mut asked_at_once = 0;
    for _ in 0..20 {
        facts.asked(Query::Models);
        facts.answered(Query::Models, AT, PAUSES[0]);
        let number = facts.doubt(AT).unwrap();
        assert_eq!(
            facts.doubt(AT),
            Some(number),
            "doubts of one moment share an answer"
        );
        asked_at_once += u32::from(facts.is_due(Query::Models, AT));
    }
    assert_eq!(asked_at_once, 4);
    assert!(
        facts.is_due(Query::Models, AT + Millis(251.0)),
        "four a second after that"
    );
}

#[tokio::test]
async fn a_doubt_waits_for_an_answer_that_was_asked_for_after_it() {
    let facts = Arc::new(facts());
    facts.begin(AT);
    facts.asked(Query::Models);
    let number = facts.doubt(AT).unwrap();
    let waiting = tokio::spawn({
        let facts = Arc::clone(&facts);
        async move { facts.wait_for_answer(Query::Models, number).await }
    });
    facts.answered(Query::Models, AT, PAUSES[0]);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "that answer was on its way before");
    assert!(facts.is_due(Query::Models, AT));
    facts.asked(Query::Models);
    facts.failed(Query::Models, AT, "timed out".to_owned(), PAUSES);
    waiting.await.unwrap();
}

#[test]
fn a_change_of_the_list_names_what_was_added_and_removed() {
    let facts = facts();
    assert_eq!(facts.learn_models(AT, listed(&["a", "b"])), None);
    assert_eq!(
        facts.learn_models(AT, listed(&["b", "a", "b"])),
        Some([vec![], vec![]])
    );
    let change = facts.learn_models(AT, listed(&["b", "c"])).unwrap();
    assert_eq!(change, [vec!["c".to_owned()], vec!["a".to_owned()]]);
}

#[test]
fn configured_models_are_not_changed_by_a_list() {
    let mut spec = config().workers[0].clone();
    spec.models = vec!["z".to_owned(), "m".to_owned()];
    let facts = EngineFacts::new(&spec, AT);
    facts.learn_models(AT, with_adapter());
    let serves = ["z", "m", "a", "m:a", "m:b"].map(|model| facts.serves(model));
    assert_eq!(
        serves,
        [Serves::Yes, Serves::Yes, Serves::No, Serves::Yes, Serves::Base]
    );
    assert_eq!(facts.known(Fact::Models).unwrap().source, FactSource::Configured);
}

#[test]
fn a_sleeping_worker_is_eligible_only_if_no_other_ready_one_is() {
    let fleet = fleet(&[Some(&["m"]), Some(&["m"]), Some(&["n"])]);
    let workers = fleet.workers();
    assert_eq!(
        workers[0].facts.learn_sleep(AT, true, FactSource::Metrics),
        FactChange::Changed
    );
    assert_eq!(eligible(&fleet, "m", Refuse), [1]);
    for _ in 0..3 {
        workers[1].observe_health(AT, Probe::Bad);
    }
    assert_eq!(eligible(&fleet, "m", Refuse), [0, 1], "no awake one is ready");
    assert_eq!(
        workers[0].facts.learn_sleep(AT, false, FactSource::Metrics),
        FactChange::Changed
    );
    assert!(!workers[0].facts.is_asleep());
    workers[0].facts.learn_sleep(AT, true, FactSource::Probed);
    workers[0].facts.begin(AT);
    assert!(!workers[0].facts.is_asleep(), "a restarted engine is awake");
}

#[test]
fn a_restart_is_noticed_by_a_later_start_of_the_process() {
    let facts = facts();
    // An address that stands for two processes shows both times in turn.
    let seen = [100.0, 100.2, 160.0, 100.0, 160.0, 200.5].map(|started| facts.learn_start(AT, started));
    assert_eq!(seen, [false, false, true, false, false, true]);
}

#[test]
fn a_dialect_that_differs_only_in_what_it_carries_has_changed() {
    let facts = facts();
    let of = |document: &str| -> Arc<dyn Dialect> { Arc::new(Tailroute::of(document.as_bytes()).unwrap()) };
    let learn = |document| facts.learn_dialect(AT, of(document), FactSource::Probed);
    assert_eq!(learn(r#"{"dialect":"tailroute"}"#), FactChange::First);
    assert_eq!(learn(r#"{"dialect":"tailroute"}"#), FactChange::Same);
    assert_eq!(
        learn(r#"{"dialect":"tailroute","objective":false}"#),
        FactChange::Changed
    );
}
