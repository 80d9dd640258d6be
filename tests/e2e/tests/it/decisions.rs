//! Decision records: the reason of each choice, its outcome, and the cause of lateness.

use config::Config;
use policy::cost::PrefillCost;
use policy::units::Millis;
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::{Fleet, metrics, quick, route};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::{until, within};

use super::admission::{bearer, key};

/// Delay of a scripted worker's first token: much longer than anything else takes.
const LATE: Millis = Millis(600.0);

async fn decisions(router: &Server, path: &str) -> (u16, Value) {
    let path = format!("/admin/v1/decisions{path}");
    let answer = client::admin(router.admin_address, "GET", &path, &[], None).await;
    (answer.status.as_u16(), answer.json())
}

/// Returns the decision for a request whose response has ended.
async fn decision(router: &Server, request: &str) -> Value {
    within(async {
        loop {
            let (status, mut found) = decisions(router, &format!("/{request}")).await;
            assert_eq!(status, 200, "{found}");
            let found = found["decisions"][0].take();
            if found["outcome"]["took_ms"].is_number() {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Elsewhere, choices could be neither matched with their requests nor read:
/// <https://github.com/ai-dynamo/dynamo/pull/11562>.
#[tokio::test]
async fn a_decision_is_found_by_request_id_with_every_term_and_its_outcome() {
    let fleet = Fleet::of(3).await;
    let mut talk = Conversation::new(&words(1, 400));
    let first = fleet
        .turn(&mut talk, &[("x-request-id", "one")], &words(2, 30))
        .await;
    let second = fleet
        .turn(&mut talk, &[("x-request-id", "two")], &words(3, 30))
        .await;
    let found = decision(&fleet.router, "two").await;
    assert_eq!(
        (&found["request"], &found["class"]),
        (&json!("two"), &json!("default"))
    );
    assert_eq!(found["worker"], *second.worker);
    assert_eq!(found["policy"], "tail");
    assert_eq!(found["conversation"].as_str().unwrap().len(), 16);
    let terms = found["terms"].as_array().unwrap();
    assert_eq!(terms.len(), 3);
    assert_eq!(terms[0]["worker"], found["worker"]);
    assert!(terms[0]["cached_tokens"].as_u64().unwrap() > 300, "{terms:?}");
    let scores: Vec<f64> = terms
        .iter()
        .map(|terms| terms["score"].as_f64().unwrap())
        .collect();
    assert!(scores[0] <= scores[1] && scores[1] <= scores[2], "{scores:?}");
    let second_best = &found["runner_up"];
    assert_eq!(second_best["worker"], terms[1]["worker"]);
    let more = second_best["score_more"].as_f64().unwrap();
    assert!((more - (scores[1] - scores[0])).abs() < 0.01, "{found}");
    assert!(second_best["than_actual_ms"].is_number());
    let outcome = &found["outcome"];
    assert_eq!(
        (&outcome["state"], &outcome["prompt_tokens"]),
        (&json!("ok"), &json!(second.prompt))
    );
    assert_eq!(outcome["cached_tokens"], second.cached);
    let parts = outcome["parts"].as_object().unwrap();
    let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
    assert!(
        (sum - outcome["ttft_ms"].as_f64().unwrap()).abs() < 0.01,
        "{outcome}"
    );

    // Newest first; by worker; in pages.
    let (_, all) = decisions(&fleet.router, "").await;
    let names = |page: &Value| -> Vec<String> {
        let page = page["decisions"].as_array().unwrap();
        page.iter()
            .map(|found| found["request"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&all), ["two", "one"]);
    let (_, page) = decisions(&fleet.router, "?limit=1").await;
    let next = page["next"].as_u64().unwrap();
    let (_, rest) = decisions(&fleet.router, &format!("?before={next}")).await;
    assert_eq!([names(&page), names(&rest)].concat(), ["two", "one"]);
    let (_, there) = decisions(&fleet.router, &format!("?worker={}", first.worker)).await;
    assert!(names(&there).contains(&"one".to_owned()));

    // By the beginning of its id, if no other request has the same.
    let (status, by_prefix) = decisions(&fleet.router, "/tw").await;
    assert_eq!(
        (status, &by_prefix["decisions"][0]["request"]),
        (200, &json!("two"))
    );
    fleet
        .turn(&mut talk, &[("x-request-id", "twenty")], &words(4, 30))
        .await;
    let (status, ambiguous) = decisions(&fleet.router, "/tw").await;
    assert_eq!(
        (status, &ambiguous["detail"]),
        (409, &json!("several request ids begin like this: twenty, two"))
    );
    assert_eq!(decisions(&fleet.router, "/two").await.0, 200);
}

#[tokio::test]
async fn missing_decisions_and_invalid_queries_are_reported() {
    let fleet = Fleet::of(1).await;
    let (status, told) = decisions(&fleet.router, "/nobody").await;
    assert_eq!(status, 404);
    assert!(
        told["detail"]
            .as_str()
            .unwrap()
            .starts_with("No decision found for this request id."),
        "{told}"
    );
    for wrong in [
        "?worker=nobody",
        "?trace=xyz",
        "?cause=bad_luck",
        "?late=perhaps",
        "?limit=0",
        "?wroker=a",
    ] {
        let (status, told) = decisions(&fleet.router, wrong).await;
        assert_eq!(status, 400, "{wrong}: {told}");
        let name = wrong.trim_start_matches('?').split('=').next().unwrap();
        assert!(told.to_string().contains(name), "{wrong}: {told}");
    }
}

#[tokio::test]
async fn the_terms_are_in_the_response_where_allowed() {
    const ASK: (&str, &str) = ("x-tailroute-explain", "1");
    let told = |answer: &Whole| answer.header("x-tailroute-explain").map(str::to_owned);
    let turn = ask("hi", json!({}));
    let open = Fleet::start(vec![quick(); 2], |config| config.explain.in_answers = true).await;
    let answer = open.chat(&[ASK], &turn).await;
    let terms: Value = serde_json::from_str(&told(&answer).unwrap()).unwrap();
    assert_eq!(terms["worker"], *answer.worker());
    assert_eq!(terms["terms"].as_array().unwrap().len(), 2);
    assert_eq!(
        terms["decision"].to_string(),
        answer.header("x-tailroute-decision").unwrap()
    );
    assert!(told(&open.chat(&[], &turn).await).is_none(), "nobody asked");
    let seen = open.engines.iter().flat_map(sim_engine::Engine::captured);
    let passed_on = seen.filter(|seen| seen.headers.contains_key(ASK.0)).count();
    assert_eq!(passed_on, 0, "the question is the router's");

    let by_key = Fleet::start(vec![quick()], |config| {
        let mut curious = key("curious");
        curious.explain = true;
        config.keys = vec![curious, key("other")];
    })
    .await;
    for (name, expected) in [("curious", true), ("other", false)] {
        let bearer = bearer(name);
        let answer = by_key.chat(&[("authorization", &bearer), ASK], &turn).await;
        assert_eq!(answer.status, 200);
        assert_eq!(told(&answer).is_some(), expected, "{name}");
    }
}

/// Starts a router and a scripted worker with this known cost.
async fn scripted(cost: PrefillCost) -> (Upstream, Server) {
    let upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config: &mut Config| {
        config.workers[0].cost = cost;
        config.workers[0].cost_is_known = true;
        config.learning.costs = false;
    })
    .await;
    (upstream, router)
}

/// Sends a turn with an objective of 50 ms, and answers it much later with this usage and these metrics.
async fn late(
    (upstream, router): (&mut Upstream, &Server),
    request: &str,
    body: &Value,
    (usage, metrics): (Value, Value),
) -> Value {
    let headers = [("x-request-id", request), ("x-slo-ttft-ms", "50")];
    let streamed = body["stream"] == true;
    let asked = async {
        let answer = client::open(router.address, "POST", CHAT, &headers, body.to_string()).await;
        answer.unwrap().whole().await
    };
    let answering = async {
        let exchange = upstream.next().await;
        let since = router.parts().state.routing.clock.now();
        until("it is late", || {
            router.parts().state.routing.clock.now() - since > LATE
        })
        .await;
        answer(exchange, streamed, &json!({ "usage": usage, "metrics": metrics })).await;
    };
    let (answer, ()) = tokio::join!(asked, answering);
    assert_eq!(answer.status, 200);
    decision(router, request).await
}

async fn answer(mut exchange: Exchange, streamed: bool, says: &Value) {
    let with = |mut event: Value| {
        event
            .as_object_mut()
            .unwrap()
            .extend(says.as_object().unwrap().clone());
        event
    };
    if !streamed {
        let said = json!({"choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]});
        exchange.answer("200 OK", &with(said).to_string()).await;
        return;
    }
    exchange.begin_events().await;
    let said = json!({"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]});
    let end = with(json!({"choices":[]}));
    exchange
        .chunk(format!("data: {said}\n\ndata: {end}\n\ndata: [DONE]\n\n").as_bytes())
        .await;
    exchange.end().await;
}

fn usage(prompt: u64, cached: u64) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}})
}

async fn counted(router: &Server, cause: &str) {
    let counted = metrics(router).await.sum(
        "tailroute_slo_violations_total",
        &[("class", "header"), ("cause", cause)],
    );
    assert_eq!(counted, 1.0, "{cause}");
}

#[tokio::test]
async fn a_violation_is_attributed_to_the_engine_its_queue_or_the_overhead() {
    let free = PrefillCost::linear(0.0, 0.0);
    let streamed = ask("hi", json!({"stream": true}));
    let (mut upstream, router) = scripted(free).await;
    for (says, cause) in [
        (Value::Null, "engine"),
        (
            json!({"time_to_first_token_ms": 2.0, "queue_time_ms": 1.0}),
            "network",
        ),
        (
            json!({"time_to_first_token_ms": 1e6, "queue_time_ms": 9e5}),
            "queue",
        ),
    ] {
        let found = late((&mut upstream, &router), cause, &streamed, (usage(20, 0), says)).await;
        let outcome = &found["outcome"];
        assert_eq!(
            (&outcome["cause"], &outcome["met"]),
            (&json!(cause), &json!(false)),
            "{found}"
        );
        assert!(
            outcome["parts"][format!("{cause}_ms")].as_f64().unwrap() > LATE.0 / 2.0,
            "{found}"
        );
        counted(&router, cause).await;
        let (_, listed) = decisions(&router, &format!("?late=true&cause={cause}")).await;
        assert_eq!(listed["decisions"].as_array().unwrap().len(), 1, "{listed}");
    }
    let whole = late(
        (&mut upstream, &router),
        "whole",
        &ask("hi", json!({})),
        (usage(20, 0), Value::Null),
    )
    .await;
    assert_eq!(whole["outcome"]["cause"], "whole", "{whole}");
}

#[tokio::test]
async fn recomputed_history_is_a_miss_and_new_tokens_are_not() {
    let (mut upstream, router) = scripted(PrefillCost::linear(1e6, 0.0)).await;
    let mut talk = Conversation::new(&words(1, 400));
    talk.user(&words(2, 20));
    let stream = json!({"stream": true, "session_id": "s"});
    let first = talk.body(stream.clone());
    let new = late(
        (&mut upstream, &router),
        "new",
        &first,
        (usage(1000, 0), Value::Null),
    )
    .await;
    assert_eq!(new["outcome"]["cause"], "prompt", "{new}");
    until("the conversation is known", || {
        router.parts().state.routing.feedback.conversations.lock().len() == 1
    })
    .await;
    talk.assistant("yes");
    talk.user(&words(3, 20));
    let again = late(
        (&mut upstream, &router),
        "again",
        &talk.body(stream),
        (usage(1100, 0), Value::Null),
    )
    .await;
    assert_eq!(again["outcome"]["cause"], "miss", "{again}");
    let mistaken = again["outcome"]["avoidable_mistaken_tokens"].as_u64().unwrap();
    assert!(mistaken > 100, "it was predicted to be there: {again}");
    let avoidable = metrics(&router)
        .await
        .sum("tailroute_avoidable_prefill_tokens_total", &[("why", "mistaken")]);
    assert_eq!(avoidable, mistaken as f64);
}
