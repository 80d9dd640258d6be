//! The parts of requests and responses that are forwarded, and those that are not.

use serde_json::{Value, json};
use sim_engine::{Captured, Dialect, EngineConfig};
use tailroute_e2e::client::{self, CHAT, Fields, H2};
use tailroute_e2e::fleet::{Fleet, at_rest, quick, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;

fn last(fleet: &Fleet) -> Captured {
    // The router sends requests of its own in between.
    let own = |request: &Captured| request.uri.path().starts_with("/v1/tailroute");
    let mut clients = fleet.engines[0].captured();
    clients.retain(|request| !own(request));
    clients.pop().expect("a request arrived")
}

async fn arrives(fleet: &Fleet, headers: Fields<'_>, body: &Value) -> Captured {
    assert_eq!(fleet.chat(headers, body).await.status, 200);
    last(fleet)
}

fn header<'a>(request: &'a Captured, name: &str) -> Option<&'a str> {
    request.headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_body_arrives_byte_for_byte_as_it_was_sent() {
    let roomy = EngineConfig {
        max_model_len: 1 << 20,
        capacity_blocks: 1 << 16,
        ..quick()
    };
    let fleet = Fleet::start(vec![roomy], |_| {}).await;
    let megabyte = ask(&words(1, 150_000), json!({ "max_tokens": 1 })).to_string();
    assert!(megabyte.len() > 900_000);
    let bodies = [
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"model\":\"sim\"}",
        " \r\n\t{ \"model\" :\"sim\" , \"messages\" : [ { \"content\":\"hi\" ,\"role\":\"user\" } ] } \n ",
        r#"{"model":"\u0073im","messages":[{"role":"user","content":"\ud83d\ude42 \/ \u00e9 é \" \\"}]}"#,
        r#"{"zebra":{"b":1,"a":[1.50,1e3,-0]},"model":"sim","messages":[{"role":"user","content":"x","x":null}],"Ω":"ω"}"#,
        r#"{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#,
        r#"{"model":"sim","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{ }"}}]},{"role":"tool","tool_call_id":"1","content":"r"}],"tools":[{"function":{"name":"f"},"type":"function"}]}"#,
        megabyte.as_str(),
    ];
    for body in bodies {
        for extra in [&[][..], &[("x-session-id", "s")]] {
            let answer = client::call(fleet.address(), "POST", CHAT, extra, body.to_owned()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(last(&fleet).body == body, "changed: {body:.200}");
        }
    }
}

#[tokio::test]
async fn a_chunked_body_is_forwarded_with_its_length() {
    let fleet = Fleet::of(1).await;
    let body = ask(&words(2, 2000), json!({ "max_tokens": 1 })).to_string();
    let mut wire = Wire::connect(fleet.address()).await;
    let fields = ["transfer-encoding: chunked", "trailer: x-end"];
    wire.write(&request(&format!("POST {CHAT}"), &fields, "")).await;
    for piece in body.as_bytes().chunks(777) {
        let mut chunk = format!("{:x};ext=1\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        wire.write(&chunk).await;
    }
    wire.write(b"0\r\nx-end: 1\r\n\r\n").await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    let arrived = last(&fleet);
    assert!(arrived.body == body);
    assert_eq!(
        header(&arrived, "content-length"),
        Some(body.len().to_string().as_str())
    );
    assert_eq!(
        (header(&arrived, "transfer-encoding"), header(&arrived, "x-end")),
        (None, None)
    );
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let fleet = Fleet::of(1).await;
    let body = ask("hello", json!({})).to_string();
    let length = format!("content-length: {}", body.len());
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&request(
        &format!("POST {CHAT}"),
        &[&length, "expect: 100-continue"],
        "",
    ))
    .await;
    wire.read_past(b"HTTP/1.1 100 Continue\r\n\r\n").await;
    wire.write(body.as_bytes()).await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    assert_eq!(header(&last(&fleet), "expect"), None);
}

#[tokio::test]
async fn invalid_parameters_reach_the_worker_and_its_error_is_forwarded() {
    let fleet = Fleet::of(1).await;
    for body in [
        "{}",
        "{\"messages\":5}",
        "[]",
        "\"text\"",
        "{\"model\":\"sim\",\"messages\":[],\"max_tokens\":0}",
    ] {
        let answer = client::call(fleet.address(), "POST", CHAT, &[], body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["type"], "BadRequestError", "{body}");
        assert!(answer.header("x-tailroute-error").is_none(), "{body}");
        assert_eq!(last(&fleet).body, body);
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn request_headers_are_forwarded_except_hop_by_hop_and_router_headers() {
    // The router sends no eviction hints to this engine.
    let engine = EngineConfig {
        dialect: Dialect::None,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |_| {}).await;
    let sent = [
        ("authorization", "Bearer secret"),
        ("x-request-id", "req-7"),
        ("accept-language", "de"),
        ("x-many", "1"),
        ("x-many", "2"),
        ("connection", "keep-alive, X-Private"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eA=="),
        ("te", "gzip"),
        ("upgrade", "h2c"),
        ("x-tailroute-evict-first-tokens", "123456789"),
    ];
    let arrived = arrives(&fleet, &sent, &ask("hello", json!({}))).await;
    for (name, value) in &sent[..3] {
        assert_eq!(header(&arrived, name), Some(*value));
    }
    let many: Vec<_> = arrived.headers.get_all("x-many").iter().collect();
    assert_eq!(many, ["1", "2"]);
    for name in [
        "connection",
        "x-private",
        "keep-alive",
        "proxy-authorization",
        "te",
        "upgrade",
    ] {
        assert_eq!(header(&arrived, name), None, "{name}");
    }
    assert_eq!(
        header(&arrived, "host"),
        Some(fleet.engines[0].addr().to_string().as_str())
    );
    assert_eq!(header(&arrived, "x-tailroute-evict-first-tokens"), None);
}

#[tokio::test]
async fn a_conversation_without_a_session_id_gets_a_stable_one() {
    let fleet = Fleet::of(1).await;
    let mut talk = tailroute_e2e::talk::Conversation::new(&words(1, 50));
    let mut names = Vec::new();
    for turn in 0..3 {
        fleet.turn(&mut talk, &[], &words(turn, 20)).await;
        names.push(header(&last(&fleet), "x-session-id").expect("a name").to_owned());
    }
    assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{names:?}");
    let other = arrives(&fleet, &[], &ask("another one", json!({}))).await;
    assert_ne!(header(&other, "x-session-id"), Some(names[0].as_str()));
}

#[tokio::test]
async fn a_clients_session_id_is_kept() {
    let fleet = Fleet::of(1).await;
    let in_header = arrives(&fleet, &[("x-session-id", "mine")], &ask("hi", json!({}))).await;
    assert_eq!(header(&in_header, "x-session-id"), Some("mine"));
    for field in ["session_id", "prompt_cache_key"] {
        let in_body = arrives(&fleet, &[], &ask("hi", json!({ field: "from-the-body" }))).await;
        assert_eq!(header(&in_body, "x-session-id"), Some("from-the-body"), "{field}");
    }
}

#[tokio::test]
async fn only_engines_with_hints_get_the_evict_first_header() {
    for (dialect, told) in [(Dialect::Tailroute, true), (Dialect::None, false)] {
        let engine = EngineConfig { dialect, ..quick() };
        let fleet = Fleet::start(vec![engine], |_| {}).await;
        let asked = ask("hello", json!({}));
        let arrived = arrives(&fleet, &[], &asked).await;
        assert_eq!(
            header(&arrived, "x-tailroute-evict-first-tokens"),
            None,
            "it is told later, when it needs the room"
        );
        let arrived = arrives(&fleet, &[("x-session-end", "1")], &asked).await;
        let expected = told.then_some("1000000000");
        assert_eq!(header(&arrived, "x-tailroute-evict-first-tokens"), expected);
    }
    for switch in ["enabled", "in_request"] {
        let fleet = Fleet::start(vec![quick()], |config| match switch {
            "enabled" => config.hints.rule = config::HintRule::Off,
            _ => config.hints.in_request = false,
        })
        .await;
        let arrived = arrives(&fleet, &[("x-session-end", "1")], &ask("hello", json!({}))).await;
        assert_eq!(
            header(&arrived, "x-tailroute-evict-first-tokens"),
            None,
            "{switch}"
        );
    }
}

#[tokio::test]
async fn response_headers_are_forwarded_except_hop_by_hop_ones() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let body = ask("hello", json!({})).to_string();
    let request = client::call(router.address, "POST", CHAT, &[], body);
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange
            .send(b"HTTP/1.1 200 Fine\r\ncontent-type: application/json\r\nx-engine: vllm\r\nkeep-alive: timeout=5\r\nx-private: 1\r\nconnection: close, x-private\r\ncontent-length: 9\r\n\r\n{ \"a\":1 }")
            .await;
    };
    let (answer, ()) = tokio::join!(request, respond);
    assert_eq!(
        (answer.text(), answer.header("x-engine")),
        ("{ \"a\":1 }", Some("vllm"))
    );
    assert_eq!(answer.worker(), upstream.address.to_string());
    assert!(answer.header("x-tailroute-decision").is_some());
    for name in ["connection", "x-private", "keep-alive"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    at_rest(&router).await;
}

#[tokio::test]
async fn model_lists_are_merged_and_other_paths_forwarded() {
    let engine = |model: &str| EngineConfig {
        model: model.to_owned(),
        ..quick()
    };
    let fleet = Fleet::start(vec![engine("b"), engine("a"), engine("b")], |_| {}).await;
    let models = client::call(fleet.address(), "GET", "/v1/models", &[], "")
        .await
        .json();
    let names: Vec<_> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["a", "b"]);
    let head = client::call(fleet.address(), "HEAD", "/v1/models", &[], "").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));

    // A turn goes to a worker with its model.
    for (model, workers) in [("a", &[1][..]), ("b", &[0, 2])] {
        for seed in 0..4 {
            let body = json!({ "model": model, "messages": [{ "role": "user", "content": words(seed, 5) }] });
            let answer = fleet.chat(&[], &body).await;
            assert_eq!(answer.status, 200);
            assert!(workers.contains(&fleet.engine_of(&answer.worker())));
        }
    }
    let body = "{ \"prompt\" : \"one two\" }";
    let tokens = client::call(fleet.address(), "POST", "/tokenize?x=%20y", &[], body).await;
    assert_eq!(tokens.json()["count"], 2);
    let mut arrived = fleet.engines[fleet.engine_of(&tokens.worker())].captured();
    arrived.retain(|request| request.uri.path() == "/tokenize");
    let arrived = arrived.last().unwrap();
    assert_eq!(
        (arrived.uri.to_string().as_str(), &arrived.body[..]),
        ("/tokenize?x=%20y", body.as_bytes())
    );
    let unknown = client::call(fleet.address(), "GET", "/nothing/here", &[], "").await;
    assert_eq!(unknown.status, 404, "the worker says so");
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_turn_over_http2_with_prior_knowledge_is_a_regular_turn() {
    use http_body_util::BodyExt as _;
    let fleet = Fleet::of(2).await;
    let h2 = H2::connect(fleet.address()).await;
    for stream in [false, true] {
        let body = ask("hello", json!({ "stream": stream })).to_string();
        let answer = h2.post(CHAT, body.clone()).await;
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("x-tailroute-worker"));
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(stream, bytes.ends_with(b"data: [DONE]\n\n"));
        assert!(fleet.engines.iter().any(|engine| {
            let arrived = engine.captured();
            arrived.iter().any(|arrived| arrived.body == body)
        }));
    }
    let refused = h2.post(CHAT, "{").await;
    assert_eq!(refused.status(), 400);
    fleet.at_rest().await;
}
