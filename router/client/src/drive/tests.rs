//! Replays against a loopback endpoint with scripted responses.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use policy::ids::ConversationId;
use policy::units::Tokens;
use serde_json::{Value, json};
use simulator::trace::{Captured, ClassId, Turn};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::client::{ChatClient, TurnFailure};
use super::plan::Plan;
use super::run::{RunSettings, Samples, replay};

/// A scripted response.
#[derive(Clone)]
enum Reply {
    Says(&'static str),
    SaysAfter(Arc<Notify>),
    Status(u16),
    BreaksOff,
    ForgetsDone,
    Hangs,
    Floods,
}

/// The body and session of each request received.
type Seen = Arc<Mutex<Vec<(Value, Option<String>)>>>;

struct Endpoint {
    address: SocketAddr,
    seen: Seen,
}

type Events = Vec<Result<Frame<Bytes>, std::io::Error>>;

fn events(text: &str, done: bool) -> Events {
    let mut events: Vec<String> = text
        .split_inclusive(' ')
        .map(|word| {
            json!({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": null}]}).to_string()
        })
        .collect();
    events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}).to_string());
    let usage =
        json!({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}});
    events.push(json!({"choices": [], "usage": usage}).to_string());
    if done {
        events.push("[DONE]".to_owned());
    }
    events
        .into_iter()
        .map(|event| Ok(Frame::data(Bytes::from(format!("data: {event}\n\n")))))
        .collect()
}

/// Yields, so that the server writes this event before the next one.
async fn one_by_one<T>(event: T) -> T {
    tokio::task::yield_now().await;
    event
}

async fn respond(reply: Reply) -> Response<UnsyncBoxBody<Bytes, std::io::Error>> {
    let mut status = 200;
    let events: Events = match reply {
        Reply::Says(text) => events(text, true),
        Reply::SaysAfter(gate) => {
            gate.notified().await;
            events("late", true)
        }
        Reply::Status(code) => {
            status = code;
            Vec::new()
        }
        Reply::BreaksOff => {
            let mut events = events("half an answer", false);
            events.truncate(1);
            events.push(Err(std::io::Error::other("worker died")));
            events
        }
        Reply::ForgetsDone => events("whole", false),
        Reply::Hangs => std::future::pending().await,
        Reply::Floods => {
            let line = Bytes::from(":".repeat(1 << 20) + "\n");
            (0..100).map(|_| Ok(Frame::data(line.clone()))).collect()
        }
    };
    let body = StreamBody::new(futures_util::stream::iter(events).then(one_by_one).boxed());
    Response::builder()
        .status(status)
        .body(UnsyncBoxBody::new(body))
        .unwrap()
}

/// Starts an endpoint that answers each request with `decide` of its body.
async fn endpoint(decide: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Seen = Arc::default();
    let (decide, noted) = (Arc::new(decide), Arc::clone(&seen));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (decide, noted) = (Arc::clone(&decide), Arc::clone(&noted));
            let service = service_fn(move |request: Request<Incoming>| {
                let (decide, noted) = (Arc::clone(&decide), Arc::clone(&noted));
                async move {
                    let session = request.headers().get("x-session-id");
                    let session = session.map(|value| value.to_str().unwrap().to_owned());
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let reply = decide(&body);
                    noted.lock().push((body, session));
                    Ok::<_, Infallible>(respond(reply).await)
                }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::spawn(connection);
        }
    });
    Endpoint { address, seen }
}

/// Plans `(conversation, history, new)` turns in order, a millisecond apart.
fn plan(turns: &[(u64, u64, u64)]) -> Plan {
    let turn = |(at, &(conversation, history, new)): (usize, &(u64, u64, u64))| Turn {
        ts_s: at as f64 * 1e-3,
        conversation: ConversationId(conversation),
        turn: at as u32,
        prompt_tokens: Tokens(new),
        history_tokens: Tokens(history),
        response_tokens: Tokens(2),
        blocks: None,
        class: ClassId::DEFAULT,
        captured: Captured::default(),
    };
    Plan::new(turns.iter().enumerate().map(turn).collect(), None, 1.0, 0.0)
}

async fn drive(endpoint: &Endpoint, plan: &Plan, timeout: Duration, concurrency_limit: usize) -> Samples {
    let settings = settings(endpoint, concurrency_limit);
    let client = ChatClient::new(timeout).unwrap();
    replay(client, settings, plan, |_| (), std::future::pending()).await
}

fn settings(endpoint: &Endpoint, concurrency_limit: usize) -> RunSettings {
    let url = format!("http://{}/v1/chat/completions", endpoint.address)
        .parse()
        .unwrap();
    RunSettings {
        urls: vec![url],
        model: "m".to_owned(),
        session: true,
        seed: 3,
        concurrency_limit,
    }
}

const PATIENT: Duration = Duration::from_secs(60);

fn turn_of(body: &Value) -> usize {
    body["messages"].as_array().unwrap().len() / 2
}

#[tokio::test]
async fn a_conversation_continues_with_the_actual_response() {
    let endpoint = endpoint(|_| Reply::Says("grün \"oder\"")).await;
    let samples = drive(&endpoint, &plan(&[(1, 0, 5), (1, 7, 3)]), PATIENT, 9).await;
    assert!(
        samples
            .turns
            .iter()
            .all(|turn| turn.failure.is_none() && turn.ttft_ms.is_some())
    );
    let seen = endpoint.seen.lock();
    let (first, second) = (&seen[0].0["messages"], &seen[1].0["messages"]);
    assert_eq!(second[0], first[0]);
    assert_eq!(
        second[1],
        json!({"role": "assistant", "content": "grün \"oder\""})
    );
    assert_eq!(second[2]["role"], "user");
    assert_eq!(
        seen[0].1, seen[1].1,
        "both turns carry their conversation's session"
    );
    assert!(seen[0].1.is_some());
}

#[tokio::test]
async fn a_held_turn_is_timed_from_its_predecessors_response() {
    let gate = Arc::new(Notify::new());
    let held = Arc::clone(&gate);
    // Conversation 2 opens the gate: it is sent although conversation 1 has no response yet.
    let endpoint = endpoint(move |body| {
        match (
            body["messages"][0]["content"]
                .as_str()
                .unwrap()
                .split(' ')
                .count(),
            turn_of(body),
        ) {
            (5, 0) => Reply::SaysAfter(Arc::clone(&held)),
            (9, _) => {
                held.notify_one();
                Reply::Says("now")
            }
            _ => Reply::Says("then"),
        }
    })
    .await;
    let samples = drive(&endpoint, &plan(&[(1, 0, 5), (1, 7, 3), (2, 0, 9)]), PATIENT, 9).await;
    assert_eq!(samples.turns.iter().filter(|turn| turn.held).count(), 1);
    let order: Vec<usize> = endpoint
        .seen
        .lock()
        .iter()
        .map(|(body, _)| turn_of(body))
        .collect();
    assert_eq!(order, [0, 0, 1], "the held turn comes last");
    assert!(samples.turns.iter().all(|turn| turn.failure.is_none()));
}

#[tokio::test]
async fn failures_are_distinguished() {
    for (reply, failure) in [
        (Reply::Status(503), TurnFailure::Status(503)),
        (Reply::BreaksOff, TurnFailure::Reset),
        (Reply::ForgetsDone, TurnFailure::Unfinished),
    ] {
        let endpoint = endpoint(move |_| reply.clone()).await;
        let samples = drive(&endpoint, &plan(&[(1, 0, 5), (1, 7, 3)]), PATIENT, 9).await;
        assert_eq!(samples.turns.len(), 2, "the conversation goes on");
        assert!(
            samples
                .turns
                .iter()
                .all(|turn| turn.failure == Some(failure.clone())),
            "{samples:?}"
        );
    }
}

#[tokio::test]
async fn a_response_longer_than_any_is_given_up() {
    let endpoint = endpoint(|_| Reply::Floods).await;
    let samples = drive(&endpoint, &plan(&[(1, 0, 5)]), PATIENT, 9).await;
    let turn = &samples.turns[0];
    assert_eq!(turn.failure, Some(TurnFailure::Malformed));
    assert_eq!(
        turn.detail.as_deref(),
        Some("a response of more than 67108864 bytes")
    );
}

#[tokio::test]
async fn a_stopped_replay_returns_the_turns_that_have_ended() {
    let endpoint = endpoint(|body| {
        match body["messages"][0]["content"]
            .as_str()
            .unwrap()
            .split(' ')
            .count()
        {
            5 => Reply::Says("now"),
            _ => Reply::Hangs,
        }
    })
    .await;
    let ended = Notify::new();
    let client = ChatClient::new(PATIENT).unwrap();
    let plan = plan(&[(1, 0, 5), (2, 0, 9)]);
    let stop = ended.notified();
    let samples = replay(
        client,
        settings(&endpoint, 9),
        &plan,
        |_| ended.notify_one(),
        stop,
    )
    .await;
    assert_eq!(samples.turns.len(), 1);
    assert_eq!(samples.turns[0].failure, None);
}

#[tokio::test]
async fn a_missing_response_is_a_timeout() {
    let endpoint = endpoint(|_| Reply::Hangs).await;
    let samples = drive(&endpoint, &plan(&[(1, 0, 5)]), Duration::from_millis(500), 9).await;
    assert_eq!(samples.turns[0].failure, Some(TurnFailure::Timeout));
}

#[tokio::test]
async fn a_refused_connection_is_a_connection_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let endpoint = Endpoint {
        address,
        seen: Seen::default(),
    };
    let samples = drive(&endpoint, &plan(&[(1, 0, 5)]), PATIENT, 9).await;
    assert_eq!(samples.turns[0].failure, Some(TurnFailure::Connection));
}

#[tokio::test]
async fn turns_delayed_by_the_concurrency_limit_are_counted() {
    let endpoint = endpoint(|_| Reply::Says("now")).await;
    let mut plan = plan(&[(1, 0, 5), (2, 0, 5), (3, 0, 5)]);
    for script in &mut plan.scripts {
        script.steps[0].at = Duration::ZERO;
    }
    let samples = drive(&endpoint, &plan, PATIENT, 1).await;
    assert_eq!((samples.turns.len(), samples.limited), (3, 2));
}

#[tokio::test]
async fn the_model_is_the_first_that_the_target_lists() {
    let endpoint = endpoint(|_| Reply::Says("unused")).await;
    let target = format!("http://{}", endpoint.address).parse().unwrap();
    let client = ChatClient::new(PATIENT).unwrap();
    let error = client.first_model(&target).await.unwrap_err();
    assert!(format!("{error:#}").contains("expected value"), "{error:#}");
}
