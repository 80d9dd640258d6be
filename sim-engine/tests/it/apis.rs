//! What holds for all APIs.

use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig, Fault};

use crate::client::{call, open, post, quick, start};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// The three APIs that take conversations.
const ALL: [&str; 3] = [CHAT, MESSAGES, RESPONSES];

/// A conversation as a request of an API. The texts are alternately the user's and the assistant's.
fn ask(path: &str, texts: &[String], tokens: u32) -> Value {
    let said = texts.iter().enumerate().map(|(at, text)| {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        json!({ "role": role, "content": text })
    });
    let said: Vec<Value> = said.collect();
    let schema = json!({ "type": "object" });
    match path {
        CHAT => {
            let mut messages = vec![json!({ "role": "system", "content": "Be brief." })];
            messages.extend(said);
            let function = json!({ "name": "read", "parameters": schema });
            let tools = json!([{ "type": "function", "function": function }]);
            json!({ "messages": messages, "tools": tools, "max_tokens": tokens })
        }
        MESSAGES => json!({
            "system": "Be brief.", "messages": said, "max_tokens": tokens,
            "tools": [{ "name": "read", "input_schema": schema }],
        }),
        _ => json!({
            "instructions": "Be brief.", "input": said, "max_output_tokens": tokens,
            "tools": [{ "type": "function", "name": "read", "parameters": schema }],
        }),
    }
}

/// The text, the cached tokens and all tokens of an answer.
fn read(path: &str, answer: &Value) -> (String, u64, u64) {
    let usage = &answer["usage"];
    let count = |value: &Value| value.as_u64().unwrap();
    let (text, cached, total) = match path {
        CHAT => (
            &answer["choices"][0]["message"]["content"],
            count(&usage["prompt_tokens_details"]["cached_tokens"]),
            count(&usage["total_tokens"]),
        ),
        MESSAGES => {
            let cached = count(&usage["cache_read_input_tokens"]);
            let total = count(&usage["input_tokens"]) + cached + count(&usage["output_tokens"]);
            (&answer["content"][0]["text"], cached, total)
        }
        _ => (
            &answer["output"][0]["content"][0]["text"],
            count(&usage["input_tokens_details"]["cached_tokens"]),
            count(&usage["total_tokens"]),
        ),
    };
    (text.as_str().unwrap().to_owned(), cached, total)
}

#[tokio::test]
async fn a_conversation_is_cached_across_the_apis() {
    let engine = start(quick()).await;
    let mut texts = vec!["tell me a long story ".repeat(20)];
    let mut computed = 0;
    for path in ALL.iter().cycle().take(7) {
        let answer = post(&engine, path, &ask(path, &texts, 20)).await;
        let (text, cached, total) = read(path, &answer);
        assert_eq!(cached, computed / 16 * 16, "{path}");
        computed = total - 1;
        texts.extend([text, "go on, please".to_owned()]);
    }
    let stats = engine.stats();
    assert_eq!((stats.received, stats.aborted.total(), stats.running), (7, 0, 0));
}

#[tokio::test]
async fn all_apis_say_the_same_to_the_same_prompt() {
    let engine = start(quick()).await;
    let texts = ["hello".to_owned()];
    let mut said = Vec::new();
    for path in ALL {
        said.push(read(path, &post(&engine, path, &ask(path, &texts, 20)).await).0);
    }
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

async fn streamed(engine: &Engine, path: &str) -> (String, bool) {
    let mut body = ask(path, &["hello".to_owned()], 20);
    body["stream"] = true.into();
    let open = open(engine, "POST", path, &[], body.to_string()).await.unwrap();
    let (bytes, error) = open.rest().await;
    (String::from_utf8(bytes).unwrap(), error.is_some())
}

#[tokio::test]
async fn faults_strike_every_api() {
    let engine = start(quick()).await;
    let ends = ["[DONE]", "message_stop", "response.completed"];
    for (path, end) in ALL.into_iter().zip(ends) {
        engine.set_fault(Fault {
            reset_after_tokens: Some(3),
            ..Fault::default()
        });
        let (events, cut) = streamed(&engine, path).await;
        assert!(
            cut && !events.is_empty() && !events.contains(end),
            "{path}: {events}"
        );
        engine.set_fault(Fault {
            status: Some(500),
            ..Fault::default()
        });
        let (status, answer) = call(&engine, "POST", path, &[], &ask(path, &["hi".to_owned()], 5)).await;
        assert_eq!(status.as_u16(), 500);
        assert_eq!(answer["error"]["type"], "InternalServerError");
        engine.set_fault(Fault::default());
        let (events, cut) = streamed(&engine, path).await;
        assert!(!cut && events.contains(end), "{path}: {events}");
    }
}

#[tokio::test]
async fn a_fast_engine_serves_every_api() {
    let engine = start(EngineConfig {
        fast: true,
        ..quick()
    })
    .await;
    for path in ALL {
        let whole = post(&engine, path, &ask(path, &["hello".to_owned()], 3)).await;
        let (text, cached, _) = read(path, &whole);
        assert_eq!((text.split(' ').count(), cached), (3, 0));
        let (events, cut) = streamed(&engine, path).await;
        let last = text.split(' ').next_back().unwrap();
        assert!(!cut && events.contains(last), "{path}: {events}");
    }
}
