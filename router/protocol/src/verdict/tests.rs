use http::HeaderValue;

use super::*;

const DECLINED: Verdict = Verdict::Declined(PushBack { after: None });
const VLLM_BUSY: &str = r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#;
const VLLM_BACKLOG: &str = r#"{"error":{"message":"The engine has reached its prefill token backlog limit. Please try again later or on a different instance.","type":"ServiceUnavailableError","param":null,"code":503}}"#;

fn judge(status: u16, fields: &[(&'static str, &str)], body: &str) -> Verdict {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    Verdict::of(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes())
}

const JSON: (&str, &str) = ("content-type", "application/json");
const HTML: (&str, &str) = ("content-type", "text/html");
const EVENTS: (&str, &str) = ("content-type", "text/event-stream; charset=utf-8");

#[test]
fn a_status_means_the_same_whatever_the_body() {
    for body in ["", "x", VLLM_BUSY] {
        for (status, verdict) in [
            (101, Verdict::Ok),
            (204, Verdict::Ok),
            (301, Verdict::Ok),
            (400, Verdict::ClientError),
            (404, Verdict::ClientError),
            (422, Verdict::ClientError),
            (499, Verdict::ClientError),
            (501, Verdict::ClientError),
            (429, DECLINED),
            (529, DECLINED),
            (500, Verdict::Failed),
            (502, Verdict::Failed),
            (504, Verdict::Failed),
            (599, Verdict::Failed),
        ] {
            assert_eq!(judge(status, &[JSON], body), verdict, "{status} {body}");
        }
    }
}

#[test]
fn a_503_is_declined_only_if_the_engine_says_so() {
    let proxy = "<html><h1>503 Service Unavailable</h1>The server is overloaded. Try again later.</html>";
    for (fields, body, verdict) in [
        (&[JSON][..], VLLM_BUSY, DECLINED),
        (&[JSON][..], VLLM_BACKLOG, DECLINED),
        (
            &[JSON][..],
            r#"{"error":{"message":"The request queue is full.","code":503}}"#,
            DECLINED,
        ),
        (
            &[JSON][..],
            r#"{"object":"error","message":"The request queue is full.","type":"x","code":503}"#,
            DECLINED,
        ),
        (
            &[JSON][..],
            r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#,
            DECLINED,
        ),
        (
            &[JSON][..],
            r#"{"error":"The model is currently scaling. Please try again later."}"#,
            DECLINED,
        ),
        (
            &[JSON][..],
            r#"{"error":{"message":"wait","type":"overloaded_error","code":"queue_full"}}"#,
            DECLINED,
        ),
        (&[("retry-after", "soon")][..], "", DECLINED),
        // Of an engine that does not work, and of proxies whose engine is gone.
        (&[][..], "", Verdict::Failed),
        (&[JSON][..], "", Verdict::Failed),
        (
            &[JSON][..],
            r#"{"error":{"message":"CUDA error: device-side assert","code":503}}"#,
            Verdict::Failed,
        ),
        (
            &[JSON][..],
            r#"{"error":{"message":"This failure was requested.","type":"InternalServerError","code":503}}"#,
            Verdict::Failed,
        ),
        (
            &[JSON][..],
            r#"{"error":{"message":"bad","code":400}}"#,
            Verdict::Failed,
        ),
        (&[JSON][..], r#"{"detail":"x"}"#, Verdict::Failed),
        (&[HTML][..], proxy, Verdict::Failed),
        (
            &[("content-type", "text/plain")][..],
            "no healthy upstream",
            Verdict::Failed,
        ),
    ] {
        assert_eq!(judge(503, fields, body), verdict, "{fields:?} {body}");
    }
    for status in [429, 503] {
        let after = Some(Duration::from_secs(7));
        let asked = Verdict::Declined(PushBack { after });
        assert_eq!(judge(status, &[("retry-after", "7")], ""), asked);
    }
}

/// Tests each form as an event and as a whole body.
#[test]
fn an_error_in_the_body_of_a_200_is_found_in_every_form() {
    for (body, verdict) in [
        (VLLM_BUSY, DECLINED),
        (
            r#"{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"error":{"message":"EngineCore died","type":"InternalServerError","code":"500"}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"error":{"message":"a 503 without a reason","code":503}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#,
            Verdict::ClientError,
        ),
        (r#"{"error":{"message":"x","code":429}}"#, DECLINED),
        (
            r#"{"error":{"message":"The request queue is full."},"code":503}"#,
            DECLINED,
        ),
        (r#"{"error":{"message":"x"}}"#, Verdict::Failed),
        (r#"{"error":{}}"#, Verdict::Failed),
        (
            r#"{"error":"Request failed during generation","error_type":"generation"}"#,
            Verdict::Failed,
        ),
        (
            r#"{"error":"Model is overloaded","error_type":"overloaded"}"#,
            DECLINED,
        ),
        (
            r#"{"error":"Input validation error","error_type":"invalid"}"#,
            Verdict::ClientError,
        ),
        (
            r#"{"object":"error","message":"x","type":"InternalServerError","param":null,"code":500}"#,
            Verdict::Failed,
        ),
        (
            r#"{"object":"error","message":"x","type":"BadRequestError","param":null,"code":400}"#,
            Verdict::ClientError,
        ),
        (
            r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            DECLINED,
        ),
        (
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#,
            DECLINED,
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"queue is"}}"#,
            Verdict::ClientError,
        ),
        (
            r#"{"type":"error","error":{"type":"InternalServerError","message":"x"}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"type":"error","code":"server_error","message":"x","sequence_number":3}"#,
            Verdict::Failed,
        ),
        (
            r#"{"type":"error","code":"rate_limit_exceeded","message":"x"}"#,
            DECLINED,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#,
            Verdict::Failed,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_prompt","message":"x"}}}"#,
            Verdict::ClientError,
        ),
        (r#"{"type":"response.failed","response":{}}"#, Verdict::Failed),
        (
            r#"{"object":"response","status":"failed","error":null,"output":[]}"#,
            Verdict::Failed,
        ),
        (
            r#"{"object":"response","status":"failed","error":{"code":"rate_limit_exceeded","message":"x"}}"#,
            DECLINED,
        ),
        (
            r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"The request queue is full.","status_code":503,"err_type":"x"}}}"#,
            DECLINED,
        ),
        (
            r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"x","status_code":500}}}"#,
            Verdict::Failed,
        ),
        (
            r#"[{"meta_info":{"finish_reason":{"type":"abort","message":"too long","status_code":400}}}]"#,
            Verdict::ClientError,
        ),
        (
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#,
            Verdict::Failed,
        ),
        (
            r#"{"choices":[{"delta":{"content":"h"}}],"error":{"message":"x","code":"worker_failed"}}"#,
            Verdict::Failed,
        ),
    ] {
        assert_eq!(judge(200, &[JSON], body), verdict, "{body}");
        for (before, after) in [
            ("data: ", "\n\n"),
            ("event: error\r\ndata:", "\r\n\r\n"),
            ("\u{feff}: hi\n\ndata: ", "\n"),
        ] {
            let event = format!("{before}{body}{after}data: [DONE]\n\n");
            assert_eq!(judge(200, &[EVENTS], &event), verdict, "{event}");
        }
    }
}

#[test]
fn an_answer_that_speaks_of_errors_is_none() {
    for body in [
        r#"{"choices":[{"message":{"content":"error: the queue is full, I failed to abort"},"finish_reason":"stop"}]}"#,
        r#"{"error":null,"object":"response","status":"completed","output":[]}"#,
        r#"{"error":false,"data":[]}"#,
        r#"{"error":"","data":[]}"#,
        r#"{"type":"response.created","response":{"status":"in_progress","error":null}}"#,
        r#"{"text":"error","meta_info":{"finish_reason":{"type":"stop","matched":2}}}"#,
        // The client's own abort, by another connection.
        r#"{"text":"h","meta_info":{"finish_reason":{"type":"abort","message":"Abort before prefill"}}}"#,
        r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"abort"}]}"#,
        r#"["error"]"#,
        "error",
        "",
        r#"{"error":{"message":"cut"#,
    ] {
        assert_eq!(judge(200, &[JSON], body), Verdict::Ok, "{body}");
        assert_eq!(
            judge(200, &[EVENTS], &format!("data: {body}\n\n")),
            Verdict::Ok,
            "{body}"
        );
    }
    let error = r#"{"error":{"code":500}}"#;
    assert_eq!(judge(200, &[HTML], error), Verdict::Ok, "not JSON");
    let cut = format!("data: {error}");
    assert_eq!(judge(200, &[EVENTS], &cut), Verdict::Ok, "not complete");
    let second = format!("data: {{}}\n\ndata: {error}\n\n");
    assert_eq!(judge(200, &[EVENTS], &second), Verdict::Ok, "not the first");
}
