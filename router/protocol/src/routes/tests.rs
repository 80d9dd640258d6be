use super::*;

fn at(path: &str) -> Result<Route, ApiError> {
    find(&Method::POST, path, false, &["/engine/info".to_owned()], false)
}

#[test]
fn where_there_are_tenants_what_is_not_understood_is_not_passed_on() {
    let at = |path: &str| find(&Method::POST, path, false, &["/engine/info".to_owned()], true);
    for path in [
        "/v1/chat/completions/",
        "/v1/%63ompletions/",
        "/v1/batches",
        "/v1/files",
        "/v1/files/file-1/content",
        "/v1/realtime",
        "/v1/responses/resp_1/",
        "/engine/info/",
    ] {
        let refused = at(path).unwrap_err();
        assert_eq!(refused.code(), "not_found", "{path}");
    }
    for path in [
        "/v1/embeddings",
        "/v1/responses/resp_1/cancel",
        "/engine/info",
        "/health",
    ] {
        assert!(at(path).is_ok(), "{path}");
    }
    let upgrade = |path| find(&Method::GET, path, true, &[], true);
    assert_eq!(upgrade("/v1/realtime").unwrap(), Route::Tunnel);
    assert!(upgrade("/v1/responses").is_err());
}

#[test]
fn inference_is_passed_on_and_nothing_else() {
    for path in [
        "/",
        "",
        "*",
        "/reset_prefix_cache",
        "/sleep",
        "/wake_up",
        "/flush_cache",
        "/update_weights_from_disk",
        "/start_profile",
        "/server_info",
        "/get_server_info",
        "/kv_event_sources",
        "/metrics",
        "/docs",
        "/collective_rpc",
        "/v1",
        "/v1/tailroute",
        "/v1/tailroute/hints",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/loads",
        "/v1/%74ailroute",
        "/v1/tailrout%65/hints",
        "//v1/tailroute",
        "/v1//tailroute",
        "/v1/./tailroute",
        "/v1/x/../tailroute",
        "/v1/%2e%2e/flush_cache",
        "/v1/..%2fflush_cache",
        "/v1\\tailroute",
        "/v1/%",
        "/v1/%zz",
        "/v1/%2",
        "/v1/%ff",
        "/v1/%00",
        "/v1/%25",
        "/v1/v1/x",
        "/%66lush_cache",
        "/engine/information",
        "/generate/x",
        "/engine",
        "/admin/v1/slo",
        "/livez",
    ] {
        assert!(matches!(at(path), Err(ApiError::NotFound)), "{path}");
    }
    for path in [
        "/v1/anything/new",
        "/engine/info",
        "/engine/info/more",
        "/version",
        "/v1/batches",
        "/v1/x/",
    ] {
        assert_eq!(at(path).unwrap(), Route::Other, "{path}");
    }
}

#[test]
fn an_escaped_path_is_what_engines_take_it_for() {
    assert_eq!(at("/v1/ch%61t/completions").unwrap(), Route::Turn(Endpoint::Chat));
    for path in ["/v1/models/meta%20llama/x", "/v1/models/meta%20llama%2fx"] {
        let model = find(&Method::GET, path, false, &[], false).unwrap();
        assert_eq!(model, Route::Model("meta llama/x".to_owned()));
    }
    assert_eq!(
        at("/v1/responses/resp_1/cancel").unwrap(),
        Route::Kept("resp_1".to_owned())
    );
}

#[test]
fn methods_that_a_path_does_not_take_are_refused() {
    for (method, path) in [
        (Method::GET, "/v1/chat/completions"),
        (Method::DELETE, "/v1/models"),
        (Method::TRACE, "/v1/models"),
        (Method::CONNECT, "/v1/models"),
    ] {
        let refused = find(&method, path, false, &[], false);
        assert!(
            matches!(refused, Err(ApiError::MethodNotAllowed(_))),
            "{method} {path}"
        );
    }
    assert_eq!(
        find(&Method::OPTIONS, "*", false, &[], false).unwrap(),
        Route::Server
    );
    assert_eq!(
        find(&Method::OPTIONS, "/v1/chat/completions", false, &[], false).unwrap(),
        Route::Other
    );
    assert_eq!(
        find(&Method::GET, "/v1/realtime", true, &[], false).unwrap(),
        Route::Tunnel
    );
    assert!(find(&Method::GET, "/flush_cache", true, &[], false).is_err());
}

#[test]
fn a_known_path_is_taken_without_its_trailing_slash() {
    let extra = ["/engine/info".to_owned()];
    for (path, short) in [
        ("/v1/chat/completions/", Some("/v1/chat/completions")),
        ("/v1/ch%61t/completions/", Some("/v1/ch%61t/completions")),
        ("/v1/models/", Some("/v1/models")),
        ("/v1/models/meta/x/", Some("/v1/models/meta/x")),
        ("/v1/responses/resp_1/", Some("/v1/responses/resp_1")),
        ("/v1/responses/", Some("/v1/responses")),
        ("/v1/audio/transcriptions/", Some("/v1/audio/transcriptions")),
        ("/v1/files/", Some("/v1/files")),
        ("/v1/realtime/", Some("/v1/realtime")),
        ("/rerank/", Some("/rerank")),
        ("/health/", Some("/health")),
        ("/engine/info/", Some("/engine/info")),
        ("/engine/info/more/", Some("/engine/info/more")),
        ("/v1/anything/", None),
        ("/v1/chat/completions//", None),
        ("/v1/chat/completions%2f", None),
        ("/v1/tailroute/", None),
        ("/flush_cache/", None),
        ("/v1/chat/completions", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(without_slash(path, &extra), short, "{path}");
    }
}

#[test]
fn a_path_with_a_wrong_prefix_is_answered_with_the_right_one() {
    for (path, meant) in [
        ("/chat/completions", Some("/v1/chat/completions")),
        ("/models", Some("/v1/models")),
        ("/messages/", Some("/v1/messages")),
        ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
        ("/openai/v1/responses", Some("/v1/responses")),
        ("/openai/embeddings", Some("/v1/embeddings")),
        ("/api/v1/audio/transcriptions", Some("/v1/audio/transcriptions")),
        ("/a/b/c/d/e/chat/completions", None),
        ("/flush_cache", None),
        ("/v1/v1/anything", None),
        ("/", None),
    ] {
        match at(path) {
            Err(ApiError::WrongPrefix(found)) => assert_eq!(Some(&*found), meant, "{path}"),
            Err(ApiError::NotFound) => assert_eq!(meant, None, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn health_checks_and_preflights_need_no_key() {
    for path in ["/health", "/ping"] {
        for method in [Method::GET, Method::HEAD] {
            let route = find(&method, path, false, &[], true).unwrap();
            assert!(route == Route::Health && !route.needs_key());
        }
        assert_eq!(at(path).unwrap(), Route::Other);
    }
    assert!(!Route::Preflight.needs_key());
    assert!(Route::Other.needs_key() && Route::Models.needs_key());
}
