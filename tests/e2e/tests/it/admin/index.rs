//! The listing of prefixes and their workers.

use serde_json::{Value, json};
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::talk::{Conversation, words};

use super::{ask, get, problem};

const INDEX: &str = "/admin/v1/index";

/// Returns the copies of the first prefix in a response: worker and tokens.
fn first(answer: &Value) -> Vec<(String, u64)> {
    let copies = answer["prefixes"][0]["copies"].as_array().unwrap();
    copies
        .iter()
        .map(|copy| {
            (
                copy["worker"].as_str().unwrap().to_owned(),
                copy["tokens"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn the_index_lists_conversations_with_their_workers_and_without_text() {
    let fleet = Fleet::of(2).await;
    let empty = get(&fleet, INDEX).await;
    assert_eq!(
        (&empty["prefixes"], &empty["complete"]),
        (&json!([]), &json!(true))
    );
    let system = words(1, 600);
    let mut long = Conversation::new(&system);
    let mut short = Conversation::new(&system);
    let question = words(7, 900);
    let home = fleet.turn(&mut long, &[], &question).await;
    fleet.turn(&mut short, &[], "hello").await;
    fleet.at_rest().await;

    let largest = get(&fleet, INDEX).await;
    assert_eq!(largest["prefixes"].as_array().unwrap().len(), 2, "{largest}");
    let (worker, tokens) = first(&largest)[0].clone();
    assert_eq!(worker, home.worker);
    assert!(tokens >= 1400, "its prompt is that long: {tokens}");
    assert_eq!(
        first(&get(&fleet, &format!("{INDEX}?worker={worker}&limit=1")).await)[0].1,
        tokens
    );
    let newest = get(&fleet, &format!("{INDEX}?order=newest&limit=1")).await;
    assert_ne!(newest["prefixes"][0]["prefix"], largest["prefixes"][0]["prefix"]);
    let shared = get(&fleet, &format!("{INDEX}?order=shared")).await;
    assert_eq!(shared["prefixes"][0]["forks"], 2, "the system prompt: {shared}");
    assert!(
        !largest
            .to_string()
            .contains(question.split_whitespace().next().unwrap()),
        "no text"
    );
}

#[tokio::test]
async fn invalid_index_queries_are_reported_by_parameter() {
    let fleet = Fleet::of(1).await;
    for (query, code, named) in [
        ("worker=nobody", "malformed", "nobody"),
        ("order=oldest", "query", "order"),
        ("limit=0", "query", "limit"),
        ("limit=201", "query", "limit"),
        ("text=1", "query", "text"),
    ] {
        let answer = ask(&fleet, ("GET", &format!("{INDEX}?{query}")), &[], None).await;
        assert_eq!(
            (answer.status.as_u16(), problem(&answer).as_str()),
            (400, code),
            "{query}"
        );
        assert!(answer.text().contains(named), "{}", answer.text());
    }
}
