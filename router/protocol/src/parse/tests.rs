use proptest::prelude::*;

use super::*;
use crate::fingerprint::Extent;

fn parse(body: &[u8]) -> Result<Parsed<'_>, ApiError> {
    super::parse(Endpoint::Chat, body)
}

#[test]
fn it_finds_the_fields_wherever_they_stand() {
    let parsed =
        parse(br#" { "messages" : [ 1 ] , "stream":true, "model":"m\u0041", "x":{"model":"no"} } "#).unwrap();
    assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("mA"), true));
    assert_eq!(
        parsed.fingerprint.extent,
        Extent::Bytes(0),
        "a message that is none leaves no trace"
    );
}

#[test]
fn unknown_shapes_pass_without_a_prompt_but_keep_model_and_stream() {
    let parsed = parse(br#"{"model":"m","stream":true,"messages":5}"#).unwrap();
    assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("m"), true));
    assert!(parsed.fingerprint.reply.is_none());
    assert!(parse(b"[1,2]").unwrap().fingerprint.reply.is_none());
    assert!(parse(br#"{"model":7}"#).unwrap().model.is_none());
}

#[test]
fn an_answer_that_the_next_turn_does_not_repeat_as_it_comes_is_not_learned() {
    let learned = |endpoint, extra: &str| {
        let body = format!(r#"{{"prompt":"x","messages":[{{"role":"user","content":"x"}}]{extra}}}"#);
        super::parse(endpoint, body.as_bytes())
            .unwrap()
            .fingerprint
            .reply
            .is_some()
    };
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        for member in [r#","echo":true"#, r#","continue_final_message": true"#] {
            assert!(!learned(endpoint, member), "{member}");
            assert!(learned(endpoint, &member.replace("true", "false")), "{member}");
        }
    }
}

#[test]
fn what_an_answer_may_count_follows_from_its_request() {
    let allowed = |endpoint, body: &'static str| super::parse(endpoint, body.as_bytes()).unwrap().allowed;
    let chat = |content: &str, more: &str| {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":{content}}},{{"content":"x","role":"user"}}]{more}}}"#
        );
        let allowed = parse(body.as_bytes()).unwrap().allowed;
        (allowed.refers, allowed.max_tokens, allowed.choices)
    };
    assert_eq!(chat(r#""hi""#, ""), (false, None, 0));
    assert_eq!(
        chat(
            r#"[{"type":"text","text":"hi"}]"#,
            r#","max_tokens":7,"max_completion_tokens":9,"n":3"#
        ),
        (false, Some(9), 3)
    );
    assert_eq!(chat(r#""hi""#, r#","max_tokens":-1,"n":"x""#), (false, None, 0));
    for part in [
        r#"{"type":"image_url","image_url":{"url":"http://x"}}"#,
        r#"{"type":"input_audio","input_audio":{}}"#,
        r#"{"type":"file","file":{"file_id":"f"}}"#,
        r#"{"type":"anything"}"#,
    ] {
        assert!(chat(&format!("[{part}]"), "").0, "{part}");
    }
    assert!(chat(r#""hi""#, r#","chat_template":"x""#).0);
    let generate = allowed(
        Endpoint::Generate,
        r#"{"text":"x","sampling_params":{"max_new_tokens":5,"n":2}}"#,
    );
    assert_eq!((generate.max_tokens, generate.choices), (Some(5), 2));
    assert!(allowed(Endpoint::Generate, r#"{"text":"x","image_data":"y"}"#).refers);
    for body in [
        r#"{"input":"x","previous_response_id":"r"}"#,
        r#"{"input":"x","tools":[{"type":"web_search"}]}"#,
    ] {
        assert!(allowed(Endpoint::Responses, body).refers, "{body}");
    }
    assert!(!allowed(Endpoint::Responses, r#"{"input":"x"}"#).refers);
}

#[test]
fn what_is_not_json_is_refused_with_the_place() {
    for body in ["", "{", "{\"a\":}", "nope", "{\"messages\":[{]}", "{} trailing"] {
        let error = parse(body.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("line 1 column"), "{body}: {error}");
    }
    assert!(
        parse(b"{\"model\":\"\xff\"}")
            .unwrap_err()
            .to_string()
            .contains("not UTF-8 at line 1 column 11")
    );
}

#[test]
fn a_session_is_named_by_either_field_and_an_empty_name_is_none() {
    let session = |body: &'static str| parse(body.as_bytes()).unwrap().session.map(Cow::into_owned);
    assert_eq!(
        session(r#"{"prompt_cache_key":"b","session_id":"a"}"#).as_deref(),
        Some("a")
    );
    assert_eq!(session(r#"{"prompt_cache_key":"b"}"#).as_deref(), Some("b"));
    assert_eq!(session(r#"{"session_id":""}"#), None);
}

fn keys(endpoint: Endpoint, body: &str) -> Vec<u64> {
    let chain = super::parse(endpoint, body.as_bytes()).unwrap().fingerprint.chain;
    chain.hashes().iter().map(|hash| hash.0).collect()
}

#[test]
fn one_conversation_has_one_fingerprint_at_every_endpoint_that_takes_messages() {
    let chat = keys(
        Endpoint::Chat,
        r#"{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!(chat.len(), 2);
    for (endpoint, body) in [
        (
            Endpoint::Messages,
            r#"{"messages":[{"role":"user","content":"hi"}],"system":"be brief","model":"m"}"#,
        ),
        (
            Endpoint::Messages,
            r#"{"model":"m","system":[{"type":"text","text":"be brief","cache_control":{}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#,
        ),
        (
            Endpoint::Responses,
            r#"{"model":"m","input":"hi","instructions":"be brief"}"#,
        ),
        (
            Endpoint::Responses,
            r#"{"model":"m","instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}"#,
        ),
        (
            Endpoint::Responses,
            r#"{"model":"m","input":[{"type":"message","role":"system","content":"be brief"},{"type":"message","role":"user","content":"hi"}]}"#,
        ),
    ] {
        assert_eq!(keys(endpoint, body), chat, "{body}");
    }
    let tools = |endpoint, rest: &str| {
        keys(
            endpoint,
            &format!(r#"{{"model":"m",{rest},"tools":[{{"name":"f"}}]}}"#),
        )
    };
    let with = tools(
        Endpoint::Chat,
        r#""messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]"#,
    );
    assert_eq!(with.len(), 3);
    assert_eq!(
        tools(
            Endpoint::Messages,
            r#""system":"be brief","messages":[{"role":"user","content":"hi"}]"#
        ),
        with
    );
    assert_eq!(
        tools(Endpoint::Responses, r#""instructions":"be brief","input":"hi""#),
        with
    );
}

#[test]
fn a_plain_prompt_is_one_wherever_it_stands() {
    let text = keys(Endpoint::Completions, r#"{"prompt":"once"}"#);
    assert_eq!(
        keys(Endpoint::Generate, r#"{"text":"once","input_ids":null}"#),
        text
    );
    let ids: Vec<u32> = (0..64).collect();
    let tokens = keys(Endpoint::Completions, &format!(r#"{{"prompt":{ids:?}}}"#));
    assert_eq!(tokens.len(), 1);
    assert_eq!(
        keys(
            Endpoint::Generate,
            &format!(r#"{{"input_ids":{ids:?},"text":null}}"#)
        ),
        tokens
    );
    assert!(keys(Endpoint::Generate, r#"{"prompt":"once","messages":[]}"#).is_empty());
}

#[test]
fn what_goes_on_from_a_response_has_no_prompt_of_its_own() {
    let parsed = super::parse(
        Endpoint::Responses,
        br#"{"previous_response_id":"resp_1","input":"go on"}"#,
    )
    .unwrap();
    assert_eq!(parsed.previous.as_deref(), Some("resp_1"));
    assert!(parsed.fingerprint.chain.is_empty() && parsed.fingerprint.reply.is_none());
    let parsed = super::parse(
        Endpoint::Responses,
        br#"{"previous_response_id":null,"input":"hi"}"#,
    )
    .unwrap();
    assert!(parsed.previous.is_none() && !parsed.fingerprint.chain.is_empty());
}

#[test]
fn an_anthropic_turn_that_calls_tools_is_repeated_by_the_next() {
    let turn = |content: &str| {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}},{{"role":"assistant","content":[{content}]}}]}}"#
        );
        keys(Endpoint::Messages, &body)
    };
    let call =
        turn(r#"{"type":"text","text":"so"},{"type":"tool_use","id":"t1","name":"f","input":{"a": 1}}"#);
    assert_eq!(
        turn(
            r#"{"text":"so","type":"text"},{"input":{"a":1},"name":"f","id":"t1","type":"tool_use","cache_control":{"type":"ephemeral"}}"#
        ),
        call
    );
    for other in [
        r#"{"type":"text","text":"so"},{"type":"tool_use","id":"t1","name":"f","input":{"a":2}}"#,
        r#"{"type":"text","text":"so"},{"type":"tool_use","id":"t2","name":"f","input":{"a":1}}"#,
        r#"{"type":"text","text":"so"},{"type":"tool_use","id":"t1","name":"g","input":{"a":1}}"#,
        r#"{"type":"text","text":"so"}"#,
    ] {
        assert_ne!(turn(other), call, "{other}");
    }
    let result = turn(r#"{"type":"tool_result","tool_use_id":"t1","content":"r"}"#);
    assert_eq!(
        turn(
            r#"{"type":"tool_result","content":[{"type":"text","text":"r"}],"tool_use_id":"t1","cache_control":{}}"#
        ),
        result
    );
    assert_ne!(
        turn(r#"{"type":"tool_result","tool_use_id":"t2","content":"r"}"#),
        result
    );
    let image = |data: &str, more: &str| {
        turn(&format!(
            r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}{more}}}"#
        ))
    };
    assert_eq!(image("AA", r#","cache_control":{}"#), image("AA", ""));
    assert_ne!(image("AA", ""), image("AB", ""));
    assert_ne!(
        turn(r#"{"type":"thinking","thinking":"x","signature":"s"}"#),
        turn(r#"{"type":"thinking","thinking":"y","signature":"s"}"#)
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for endpoint in [
            Endpoint::Chat,
            Endpoint::Completions,
            Endpoint::Messages,
            Endpoint::Responses,
            Endpoint::Generate,
            Endpoint::Embeddings,
        ] {
            let _ = super::parse(endpoint, &body);
        }
    }
}
