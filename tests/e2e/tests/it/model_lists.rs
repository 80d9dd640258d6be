//! What workers serve changes while they are healthy: lists grow, shrink, are renamed and cannot be read for a while. A
//! client gets no 404 for a model that a ready worker serves.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::changeable::{ChangeableEngine, Lists};
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::route;
use tailroute_e2e::wait::until;

/// Ways in which a list cannot be read.
const UNREADABLE: [Lists; 5] = [
    Lists::Status(404),
    Lists::Status(401),
    Lists::Status(503),
    Lists::Html,
    Lists::Never,
];

async fn fleet(engines: &[&ChangeableEngine], tweak: impl FnOnce(&mut config::Config)) -> Server {
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    route(&addresses, |config| {
        config.health.interval = Duration::from_millis(100);
        config.health.timeout = Duration::from_secs(5);
        config.health.queue_interval = Some(Duration::from_millis(50));
        config.health.facts_interval = Duration::from_millis(200);
        tweak(config);
    })
    .await
}

async fn ask(router: &Server, model: &Value) -> Whole {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hello" }] });
    client::call(router.address, "POST", CHAT, &[], body.to_string()).await
}

async fn status(router: &Server, model: &str) -> u16 {
    ask(router, &json!(model)).await.status.as_u16()
}

async fn all(router: &Server, model: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(status(router, model).await);
    }
    statuses
}

async fn listed(router: &Server) -> Vec<String> {
    let list = client::call(router.address, "GET", "/v1/models", &[], String::new())
        .await
        .json();
    let cards = list["data"].as_array().unwrap();
    cards
        .iter()
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn until_listed(router: &Server, expected: &[&str]) {
    let wait = async {
        while listed(router).await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(30), wait).await.is_ok(),
        "{expected:?} was never listed"
    );
}

#[tokio::test]
async fn a_model_that_is_loaded_is_served_at_its_first_request() {
    let engines = [
        ChangeableEngine::start(&["m"]).await,
        ChangeableEngine::start(&["m"]).await,
    ];
    // The next probe is an hour away: only the request can make the router look.
    let router = fleet(&engines.each_ref(), |config| {
        config.health.interval = Duration::from_secs(3600)
    })
    .await;
    engines[1].has(&["m", "adapter"]);
    assert_eq!(all(&router, "adapter", 8).await, [200; 8]);
    assert_eq!(
        engines[0].change(|state| state.served.len() + state.denied.len()),
        0
    );
    assert_eq!(status(&router, "nothing").await, 404);
    let card = client::call(router.address, "GET", "/v1/models/adapter", &[], String::new()).await;
    assert_eq!(card.status, StatusCode::OK);
}

#[tokio::test]
async fn a_model_that_is_unloaded_on_one_of_two_is_served_by_the_other() {
    let engines = [
        ChangeableEngine::start(&["m", "a"]).await,
        ChangeableEngine::start(&["m", "a"]).await,
    ];
    let router = fleet(&engines.each_ref(), |config| {
        config.health.interval = Duration::from_secs(3600)
    })
    .await;
    engines[0].has(&["m"]);
    assert_eq!(all(&router, "a", 24).await, [200; 24]);
    assert!(
        engines[0].change(|state| state.denied.len()) <= 1,
        "its list is read again at once"
    );
}

#[tokio::test]
async fn a_denied_model_is_tried_elsewhere_although_the_list_cannot_be_read() {
    let engines = [
        ChangeableEngine::start(&["m", "a"]).await,
        ChangeableEngine::start(&["m", "a"]).await,
    ];
    let router = fleet(&engines.each_ref(), |_| ()).await;
    for engine in &engines {
        engine.change(|state| state.lists = Lists::Status(500));
    }
    engines[0].has(&["m"]);
    assert_eq!(all(&router, "a", 12).await, [200; 12]);
    assert!(
        engines[0].change(|state| state.denied.len()) <= 1,
        "a denial is remembered"
    );
}

#[tokio::test]
async fn a_renamed_model_is_known_by_its_new_name_alone() {
    let engines = [
        ChangeableEngine::start(&["m"]).await,
        ChangeableEngine::start(&["m"]).await,
    ];
    let router = fleet(&engines.each_ref(), |_| ()).await;
    for engine in &engines {
        engine.has(&["m-2"]);
    }
    assert_eq!(
        (status(&router, "m-2").await, status(&router, "m").await),
        (200, 404)
    );
    until_listed(&router, &["m-2"]).await;
    // The workers exchange their models.
    let engines = [
        ChangeableEngine::start(&["x"]).await,
        ChangeableEngine::start(&["y"]).await,
    ];
    let router = fleet(&engines.each_ref(), |config| {
        config.health.interval = Duration::from_secs(3600)
    })
    .await;
    engines[0].has(&["y"]);
    engines[1].has(&["x"]);
    assert_eq!(
        (all(&router, "x", 4).await, all(&router, "y", 4).await),
        (vec![200; 4], vec![200; 4])
    );
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_neither_yes_nor_no() {
    for lists in UNREADABLE {
        let engines = [
            ChangeableEngine::start(&["llama"]).await,
            ChangeableEngine::start(&["qwen"]).await,
        ];
        engines[1].change(|state| state.lists = lists);
        let router = fleet(&engines.each_ref(), |config| {
            config.health.timeout = Duration::from_secs(1);
            config.health.unhealthy_after = std::num::NonZeroU32::MAX;
        })
        .await;
        assert_eq!(all(&router, "llama", 12).await, [200; 12], "{lists:?}");
        let denied = engines[1].change(|state| state.denied.clone());
        assert!(denied.is_empty(), "{lists:?}: {denied:?}");
        assert_eq!(
            status(&router, "qwen").await,
            200,
            "{lists:?}: no other worker is known to have it"
        );
        let worker = &router.parts().state.routing.fleet.workers()[1];
        until("the failure is shown", || {
            worker
                .facts
                .report()
                .iter()
                .any(|report| report.failing.is_some())
        })
        .await;
        engines[1].change(|state| state.lists = Lists::Readably);
        until_listed(&router, &["llama", "qwen"]).await;
    }
}

#[tokio::test]
async fn a_list_that_cannot_be_read_for_a_while_erases_nothing() {
    for lists in UNREADABLE {
        let engines = [
            ChangeableEngine::start(&["llama"]).await,
            ChangeableEngine::start(&["qwen"]).await,
        ];
        let router = fleet(&engines.each_ref(), |config| {
            config.health.timeout = Duration::from_secs(1);
            config.health.unhealthy_after = std::num::NonZeroU32::MAX;
        })
        .await;
        engines[1].change(|state| state.lists = lists);
        let worker = &router.parts().state.routing.fleet.workers()[1];
        until("the list has failed", || {
            worker
                .facts
                .report()
                .iter()
                .any(|report| report.failing.is_some())
        })
        .await;
        let statuses = [all(&router, "llama", 6).await, all(&router, "qwen", 6).await];
        assert_eq!(statuses, [[200; 6], [200; 6]], "{lists:?}");
        assert_eq!(listed(&router).await, ["llama", "qwen"], "{lists:?}");
        assert_eq!(status(&router, "other").await, 404, "{lists:?}");
        engines[1].change(|state| {
            state.models = vec!["qwen-2".to_owned()];
            state.lists = Lists::Readably;
        });
        until_listed(&router, &["llama", "qwen-2"]).await;
    }
}

#[tokio::test]
async fn names_that_engines_take_and_do_not_list_are_forwarded() {
    let engines = [
        ChangeableEngine::start(&["base"]).await,
        ChangeableEngine::start(&["other"]).await,
    ];
    let router = fleet(&engines.each_ref(), |_| ()).await;
    assert_eq!(status(&router, "base:adapter").await, 200);
    assert_eq!(
        engines[0].change(|state| state.served.clone()),
        ["base:adapter"],
        "unchanged"
    );
    assert_eq!(status(&router, "default").await, 404);
    for unnamed in [json!(""), Value::Null] {
        assert_eq!(ask(&router, &unnamed).await.status, StatusCode::OK);
    }
    drop(router);
    let router = fleet(&engines.each_ref(), |config| {
        config.routing.unlisted_models = config::UnlistedModels::Pass;
    })
    .await;
    engines[1].has(&["other", "default"]);
    engines[1].change(|state| state.lists = Lists::Html);
    assert_eq!(
        all(&router, "default", 4).await,
        [200; 4],
        "a denial by one engine leads to the other"
    );
    assert_eq!(status(&router, "nothing").await, 404);
}

#[tokio::test]
async fn a_sleeping_engine_gets_no_turns_while_another_is_awake() {
    for sleep_in_metrics in [true, false] {
        let engines = [
            ChangeableEngine::start(&["m"]).await,
            ChangeableEngine::start(&["m"]).await,
        ];
        for engine in &engines {
            engine.change(|state| state.sleep_in_metrics = sleep_in_metrics);
        }
        let router = fleet(&engines.each_ref(), |_| ()).await;
        let worker = router.parts().state.routing.fleet.workers()[0].clone();
        assert_eq!(status(&router, "m").await, 200);
        engines[0].change(|state| state.asleep = true);
        until("it is known to sleep", || worker.facts.is_asleep()).await;
        let before = engines[0].change(|state| state.served.len());
        assert_eq!(all(&router, "m", 12).await, [200; 12]);
        assert_eq!(engines[0].change(|state| state.served.len()), before);
        engines[0].change(|state| state.asleep = false);
        until("it is known to be awake", || !worker.facts.is_asleep()).await;
    }
}

#[tokio::test]
async fn a_dialect_that_appears_under_a_healthy_engine_is_used() {
    let engine = ChangeableEngine::start(&["m"]).await;
    let router = fleet(&[&engine], |_| ()).await;
    let worker = router.parts().state.routing.fleet.workers()[0].clone();
    assert_eq!(worker.dialect().name(), "none");
    engine.change(|state| {
        state.capabilities = Some(json!({ "dialect": "tailroute", "capacity_tokens": 65_536 }))
    });
    until("its dialect", || worker.dialect().name() == "tailroute").await;
    let capacity = || router.parts().state.routing.knowledge.capacity(worker.id).0;
    until("its capacity", || capacity() > 60_000 && capacity() <= 65_536).await;
    engine.change(|state| {
        state.capabilities = Some(json!({ "dialect": "tailroute", "capacity_tokens": 131_072 }))
    });
    until("its new capacity", || capacity() > 120_000).await;
}
