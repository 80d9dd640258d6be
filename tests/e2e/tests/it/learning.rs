//! Learning while serving: the cost of workers, their queues, the behaviour of conversations.

use std::sync::Arc;
use std::time::Duration;

use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};
use serde_json::{Value, json};
use sim_engine::{EngineConfig, Fault};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, NEVER_MS, at_rest, metrics, quick, route, stuck_in_prefill};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

/// An engine with time scaled by ten; a token costs 0.02 ms of wall time.
fn paced() -> EngineConfig {
    EngineConfig {
        time_scale: 10.0,
        prefill: PrefillCost::linear(0.2, 20.0),
        default_output_tokens: 4,
        tpot_ms: 1.0,
        ..quick()
    }
}

fn cost(fleet: &Fleet, worker: usize) -> PrefillCost {
    fleet.router.parts().state.routing.fleet.workers()[worker].cost()
}

/// Waits until the observations of this number of answers are applied.
async fn learned(fleet: &Fleet, answers: u64) {
    let costs = &fleet.router.parts().state.routing.feedback.costs;
    let workers = fleet.engines.len() as u32;
    let seen = || {
        (0..workers)
            .map(|slot| costs.lock().state(policy::ids::WorkerId(slot)).unwrap().answers)
            .sum::<u64>()
    };
    until("all answers are learned from", || seen() >= answers).await;
}

/// Returns prompts of 50 to 750 tokens that share nothing.
fn prompt(number: u64) -> String {
    words(1000 + number, 50 + (number * 7919 % 700) as usize)
}

async fn correct(engine: EngineConfig, streamed: bool, tolerance: f64) {
    let fleet = Fleet::start(vec![engine], |config| {
        config.workers[0].cost = PrefillCost::linear(0.04, 2.0);
        config.workers[0].cost_is_known = true;
    })
    .await;
    let extra = json!({ "stream": streamed, "stream_options": { "include_usage": true } });
    for number in 0..200 {
        let answer = fleet.chat(&[], &ask(&prompt(number), extra.clone())).await;
        assert_eq!(answer.status, 200);
    }
    // Streams are clean samples here, except for delays by the machine.
    learned(&fleet, 150).await;
    let found = cost(&fleet, 0).alpha_ms_per_token;
    assert!((found / 0.02 - 1.0).abs() < tolerance, "{found}");
    let page = fleet.metrics().await;
    let exported = page.sum("tailroute_worker_cost_alpha_seconds_per_token", &[]) * 1e3;
    assert!((exported / found - 1.0).abs() < 0.1, "{exported} {found}");
    let told = |told| page.sum("tailroute_worker_cost_answers_total", &[("told", told)]);
    assert!(told("engine") + told("clean") >= 150.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_off_by_two_is_corrected_within_two_hundred_responses_with_engine_times() {
    let engine = EngineConfig {
        per_request_metrics: true,
        ..paced()
    };
    correct(engine.clone(), true, 0.15).await;
    correct(engine, false, 0.15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_is_learned_by_the_routers_clock_without_engine_times() {
    correct(paced(), true, 0.35).await;
}

/// Unstreamed responses of an engine without times teach nothing, but its counters do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_is_learned_from_the_engines_counters_without_times() {
    let fleet = Fleet::start(vec![paced()], |config| {
        config.workers[0].cost = PrefillCost::linear(0.04, 2.0);
        config.workers[0].cost_is_known = true;
        config.health.queue_interval = Some(Duration::from_millis(5));
    })
    .await;
    let costs = &fleet.router.parts().state.routing.feedback.costs;
    let learned = || costs.lock().state(policy::ids::WorkerId(0)).unwrap().answers;
    let mut number = 0;
    while learned() < 150 {
        assert!(
            number < 3000,
            "{} intervals of {number} answers taught",
            learned()
        );
        let answer = fleet.chat(&[], &ask(&prompt(number), json!({}))).await;
        assert_eq!(answer.status, 200);
        number += 1;
    }
    // A prompt of 400 tokens takes 10 ms of wall time. Means over a few prompts are a weaker signal than single
    // prompts of different lengths.
    let found = cost(&fleet, 0);
    let typical = found.prefill(Tokens(400), Tokens::ZERO).0;
    assert!((typical / 10.0 - 1.0).abs() < 0.15, "{found:?}");
    assert!((found.alpha_ms_per_token / 0.02 - 1.0).abs() < 0.25, "{found:?}");
    let page = fleet.metrics().await;
    let told = |told| page.sum("tailroute_worker_cost_answers_total", &[("told", told)]);
    assert!(told("counters") >= 150.0);
    assert_eq!(told("engine") + told("clean") + told("predicted"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_without_usage_teach_by_predicted_tokens_and_pass_unchanged() {
    let fleet = Fleet::start(vec![paced()], |config| {
        config.workers[0].cost = PrefillCost::linear(0.04, 2.0);
        config.workers[0].cost_is_known = true;
        // The ratio of tokens to bytes is not configured.
        config.routing.tokens_per_byte = 1.0 / 6.0;
    })
    .await;
    for number in 0..200 {
        // Every other prompt continues the previous one, so that much of it is cached.
        let mut text = prompt(number / 2);
        if number % 2 == 1 {
            text += &words(7000 + number, 200);
        }
        let body = ask(&text, json!({ "stream": true }));
        let answer = fleet.chat(&[], &body).await;
        let events = answer.events();
        assert!(answer.status == 200 && events.last().unwrap() == "[DONE]");
        assert!(
            events.iter().all(|event| event["usage"].is_null()),
            "{}",
            answer.text()
        );
        let all = fleet.engines[0].captured();
        let sent = all.iter().rfind(|request| request.uri.path() == CHAT).unwrap();
        assert_eq!(
            sent.body,
            body.to_string(),
            "what the engine reads is what the client wrote"
        );
    }
    learned(&fleet, 150).await;
    let found = cost(&fleet, 0).alpha_ms_per_token;
    assert!((found / 0.02 - 1.0).abs() < 0.35, "{found}");
    let page = fleet.metrics().await;
    let told = |told| page.sum("tailroute_worker_cost_answers_total", &[("told", told)]);
    assert!(told("predicted") >= 150.0);
    assert_eq!(told("engine") + told("clean"), 0.0);
}

#[tokio::test]
async fn a_slow_worker_is_detected_before_any_response_is_complete() {
    let engine = EngineConfig {
        tpot_ms: NEVER_MS,
        ..paced()
    };
    let fleet = Fleet::start(vec![engine], |config| {
        config.workers[0].cost = PrefillCost::linear(0.002, 0.2);
        config.workers[0].cost_is_known = true;
        config.routing.tokens_per_byte = 1.0 / 6.0;
    })
    .await;
    let mut open = Vec::new();
    for number in 0..20 {
        let mut answer = fleet
            .open(&[], &ask(&prompt(number), json!({ "stream": true })))
            .await;
        answer.chunk().await.unwrap().unwrap();
        open.push(answer);
    }
    // Ten times the assumed cost, or more if this machine is busy. It is not late any more once the learned cost is
    // half of the actual one.
    let typical = || cost(&fleet, 0).prefill(Tokens(400), Tokens::ZERO);
    until("it is known", || typical().0 > 4.0).await;
    let page = fleet.metrics().await;
    assert!(page.sum("tailroute_worker_cost_answers_total", &[("told", "late")]) >= 1.0);
}

#[tokio::test]
async fn missing_cached_tokens_count_as_zero_after_a_report() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let details = r#","prompt_tokens_details":{"cached_tokens":16}"#;
    for (number, told) in [(1, ""), (2, details), (3, "")] {
        let body = ask(&words(number, 40), json!({})).to_string();
        let request = client::call(router.address, "POST", CHAT, &[], body);
        let respond = async {
            let answer = format!(
                r#"{{"choices":[{{"index":0,"message":{{"content":"hi"}},"finish_reason":"stop"}}],
                "usage":{{"prompt_tokens":48,"completion_tokens":1{told}}},
                "metrics":{{"time_to_first_token_ms":25.0,"queue_time_ms":1.0}}}}"#
            );
            upstream.next().await.answer("200 OK", &answer).await;
        };
        assert_eq!(tokio::join!(request, respond).0.status, 200);
    }
    let costs = &router.parts().state.routing.feedback.costs;
    until("all answers are learned from", || {
        costs.lock().state(policy::ids::WorkerId(0)).unwrap().answers == 3
    })
    .await;
    let page = metrics(&router).await;
    let told = |told| page.sum("tailroute_worker_cost_answers_total", &[("told", told)]);
    // Until its first report, it may be an engine that never reports.
    assert_eq!((told("predicted"), told("engine")), (1.0, 2.0));
    let cached = page.sum("tailroute_prompt_tokens_total", &[("kind", "reported_cached")]);
    assert_eq!(cached, 16.0);
}

/// Runs a turn whose response begins this much later than its engine's reported 2.5 ms of prefill and half a
/// millisecond of queueing. Returns the terms of the choice.
async fn late_beside(upstream: &mut Upstream, router: &Server, number: u64, beside: Duration) -> Value {
    let text = ask(&words(number, 40), json!({ "stream": true })).to_string();
    let asked = [("x-tailroute-explain", "1")];
    let respond = async {
        let mut exchange = upstream.next().await;
        tokio::time::sleep(beside).await;
        exchange.begin_events().await;
        let event = json!({
            "choices": [{ "index": 0, "delta": { "content": "hi" }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 48, "completion_tokens": 1 },
            "metrics": { "time_to_first_token_ms": 3.0, "queue_time_ms": 0.5 },
        });
        let events = format!("data: {event}\n\ndata: [DONE]\n\n");
        exchange.chunk(events.as_bytes()).await;
        exchange.end().await;
    };
    let answer = client::open(router.address, "POST", CHAT, &asked, text);
    let (answer, ()) = tokio::join!(async { answer.await.unwrap().whole().await }, respond);
    let explained = answer.header("x-tailroute-explain").unwrap();
    let mut explained: Value = serde_json::from_str(explained).unwrap();
    explained["terms"][0].take()
}

#[tokio::test]
async fn overhead_beyond_the_engines_times_is_predicted_separately_from_prefill() {
    const BESIDE: Duration = Duration::from_millis(30);
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        config.workers[0].cost = PrefillCost::linear(0.01, 2.0);
        config.workers[0].cost_is_known = true;
        config.explain.in_answers = true;
    })
    .await;
    let before = late_beside(&mut upstream, &router, 0, BESIDE).await;
    assert_eq!(before["overhead_ms"], 0.0, "{before}");
    for number in 1..80 {
        late_beside(&mut upstream, &router, number, BESIDE).await;
    }
    let (costs, worker) = (
        &router.parts().state.routing.feedback.costs,
        policy::ids::WorkerId(0),
    );
    until("all answers are learned from", || {
        costs.lock().state(worker).unwrap().answers == 80
    })
    .await;
    let learned = &router.parts().state.routing.fleet.workers()[0];
    // Of at least 30 ms, the engine explains 3.
    until("the overhead is published", || {
        learned.with_load(|load| load.overhead.0) > 25.0
    })
    .await;
    let page = metrics(&router).await;
    let overhead = page.sum("tailroute_worker_cost_overhead_seconds", &[]);
    let beta = page.sum("tailroute_worker_cost_beta_seconds", &[]);
    assert!(overhead > 0.025 && beta < 0.008, "{overhead} {beta}");
    let terms = late_beside(&mut upstream, &router, 99, BESIDE).await;
    let number = |name: &str| terms[name].as_f64().unwrap();
    assert!(
        number("overhead_ms") > 25.0 && number("fixed_ms") < 8.0,
        "{terms}"
    );
    assert!(number("predicted_ttft_ms") > 26.0, "{terms}");
}

#[tokio::test]
async fn a_truncated_stream_does_not_count_as_zero_cached_tokens() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let event = |content: &str, details: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}}}}],\
             \"usage\":{{\"prompt_tokens\":48,\"completion_tokens\":1{details}}}}}\n\n"
        )
    };
    let details = r#","prompt_tokens_details":{"cached_tokens":16}"#;
    let mut agreed = Vec::new();
    for (number, is_cut) in [(1, false), (2, true), (3, false)] {
        let text = ask(&words(number, 40), json!({ "stream": true }));
        let request = client::open(router.address, "POST", CHAT, &[], text.to_string());
        let respond = async {
            let mut exchange = upstream.next().await;
            exchange.begin_events().await;
            exchange.chunk(event("hi", "").as_bytes()).await;
            exchange
        };
        let (answer, mut exchange) = tokio::join!(request, respond);
        let mut answer = answer.unwrap();
        within(answer.chunk()).await.unwrap().unwrap();
        if is_cut {
            exchange.reset();
        } else {
            // The third response has no such field, which counts as zero.
            let last = event("", if number == 1 { details } else { "" }) + "data: [DONE]\n\n";
            exchange.chunk(last.as_bytes()).await;
            exchange.end().await;
        }
        while within(answer.chunk()).await.is_some_and(|chunk| chunk.is_ok()) {}
        at_rest(&router).await;
        let page = metrics(&router).await;
        agreed.push(page.sum("tailroute_cached_tokens_agreement_total", &[]));
    }
    assert_eq!(agreed, [1.0, 1.0, 2.0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_costs_stay_when_learning_is_off() {
    let engine = EngineConfig {
        per_request_metrics: true,
        ..paced()
    };
    let fleet = Fleet::start(vec![engine], |config| config.learning.costs = false).await;
    let before = cost(&fleet, 0);
    for number in 0..20 {
        fleet.chat(&[], &ask(&prompt(number), json!({}))).await;
    }
    fleet.at_rest().await;
    assert_eq!(cost(&fleet, 0), before);
}

/// Runs conversations of a few turns each, several at a time, until this number of turns was answered.
async fn converse(fleet: &Arc<Fleet>, turns: u64, seed: u64) {
    let mut talkers = tokio::task::JoinSet::new();
    const TALKERS: u64 = 6;
    for talker in 0..TALKERS {
        let fleet = Arc::clone(fleet);
        talkers.spawn(async move {
            let mut said = 0;
            let mut conversation = 0;
            while said < turns / TALKERS {
                let id = seed * 1_000_000 + talker * 1000 + conversation;
                let mut talk = Conversation::new(&words(id, 600));
                for turn in 0..4 {
                    fleet.turn(&mut talk, &[], &words(id * 10 + turn, 120)).await;
                    said += 1;
                }
                conversation += 1;
            }
        });
    }
    while let Some(ended) = talkers.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_slowed_fivefold_is_detected_and_loses_traffic() {
    let engine = EngineConfig {
        per_request_metrics: true,
        ..paced()
    };
    let fleet = Fleet::start(vec![engine; 3], |config| {
        for worker in &mut config.workers {
            worker.cost = PrefillCost::linear(0.02, 2.0);
        }
        config.routing.utilisation_window = Millis(2000.0);
    })
    .await;
    let fleet = Arc::new(fleet);
    let shares = |before: &[u64]| {
        let sent: Vec<u64> = fleet
            .received()
            .iter()
            .zip(before)
            .map(|(now, then)| now - then)
            .collect();
        sent[0] as f64 / sent.iter().sum::<u64>() as f64
    };
    converse(&fleet, 240, 1).await;
    let healthy = shares(&[0; 3]);
    assert!((0.2..0.47).contains(&healthy), "{healthy}");
    fleet.engines[0].set_fault(Fault {
        slow: 5.0,
        ..Fault::default()
    });
    // It gets few turns as soon as it is late, so it takes some rounds to learn its cost. Once it gets next to none,
    // nothing more is learned, even if it were slower still.
    let believed = || cost(&fleet, 0).alpha_ms_per_token / cost(&fleet, 1).alpha_ms_per_token;
    for round in 0..20 {
        converse(&fleet, 60, 10 + round).await;
        if believed() > 3.0 {
            break;
        }
    }
    assert!(
        (2.0..8.0).contains(&believed()),
        "five times as slow, taken for {}",
        believed()
    );
    let before = fleet.received();
    converse(&fleet, 240, 3).await;
    let slowed = shares(&before);
    assert!(
        slowed < 0.6 * healthy,
        "{healthy} of the turns before, {slowed} after"
    );
}

/// Elsewhere, several routers herded onto the same worker: <https://github.com/ai-dynamo/dynamo/issues/589>.
#[tokio::test]
async fn reported_load_of_other_routers_counts_even_if_its_worker_falls_silent() {
    let fleet = Fleet::start(vec![stuck_in_prefill(), quick()], |config| {
        // A reading counts for 2.5 intervals, and what waits is taken to be computed meanwhile: so that it is not soon.
        config.health.queue_interval = Some(Duration::from_secs(1));
        for worker in &mut config.workers {
            worker.cost = PrefillCost::linear(0.0, 2_000.0);
        }
        config.learning.costs = false;
    })
    .await;
    // An idle router reads seldom.
    fleet.router.parts().state.operations.idle.requested(Millis::ZERO);
    let busy = fleet.engines[0].addr();
    let mut others = Vec::new();
    for number in 0..4 {
        let body = ask(&prompt(number), json!({ "stream": true })).to_string();
        others.push(tokio::spawn(client::open(busy, "POST", CHAT, &[], body)));
    }
    within(fleet.engines[0].stats_when(|stats| stats.waiting == 3)).await;
    let parts = Arc::clone(fleet.router.parts());
    let wait = |at: usize| {
        let now = parts.state.routing.clock.now();
        parts.state.routing.fleet.workers()[at].with_load(|load| load.pending.elsewhere(now))
    };
    // A turn that arrives while its worker is read counts as another's until the next reading.
    let three_elsewhere = || async {
        let elsewhere = [("what", "elsewhere")];
        while fleet.metrics().await.sum("tailroute_worker_queue", &elsewhere) != 3.0 {
            tokio::task::yield_now().await;
        }
    };
    within(three_elsewhere()).await;
    assert!(wait(0) > Millis::ZERO);
    assert_eq!(wait(1), Millis::ZERO);
    for number in 10..20 {
        let answer = fleet.chat(&[], &ask(&prompt(number), json!({}))).await;
        assert_eq!(fleet.engine_of(answer_worker(&answer)), 1);
    }
    within(three_elsewhere()).await;
    others.iter().for_each(tokio::task::JoinHandle::abort);
    fleet.kill(0).await;
    until("its figures are stale", || {
        let figure = parts.state.routing.fleet.workers()[0].with_load(|load| load.figure);
        let (figure, _) = figure.unwrap();
        parts.state.routing.clock.now() > figure.asked + figure.good_for
    })
    .await;
    assert!(wait(0) > Millis::ZERO);
}

fn answer_worker(answer: &client::Whole) -> &str {
    answer.headers["x-tailroute-worker"].to_str().unwrap()
}
