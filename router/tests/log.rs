//! The log of a real process: the request that each line names, and log levels changed at runtime.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Sends a request on a new connection; `None` if the port is not open.
async fn call(address: SocketAddr, method: Method, path: &str, body: &Value) -> Option<(u16, Value)> {
    let stream = TcpStream::connect(address).await.ok()?;
    #[expect(clippy::disallowed_methods, reason = "the client of a test")]
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-00"))
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let answer = sender.send_request(request).await.ok()?;
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.ok()?.to_bytes();
    Some((status, serde_json::from_slice(&bytes).unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_a_request_name_its_trace_and_what_is_shown_changes_at_once() {
    let engine = EngineConfig {
        time_scale: 1000.0,
        ..EngineConfig::default()
    };
    let engine = Engine::start(engine).await.unwrap();
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [data, admin] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    drop(sockets);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("t.toml");
    let text = format!(
        "[server]\nlisten = \"{data}\"\n[admin]\nlisten = \"{admin}\"\n[log]\nformat = \"json\"\nlevel = \"warn\"\n\
         [[workers]]\nurl = \"http://{}\"\n",
        engine.addr()
    );
    std::fs::write(&config, &text).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_tailroute"))
        .args(["serve", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let scenario = async {
        let chat = json!({ "model": "sim", "max_tokens": 2, "stream": true, "messages": [{ "role": "user", "content": "canary" }] });
        let ask = async || call(data, Method::POST, "/v1/chat/completions", &chat).await;
        while ask().await.is_none_or(|(status, _)| status != 200) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let level = json!({ "level": "warn,proxy::path=debug", "reason": "a test" });
        let (status, now) = call(admin, Method::PUT, "/admin/v1/log", &level).await.unwrap();
        assert_eq!((status, &now["level"]), (200, &level["level"]), "{now}");
        for (wrong, field) in [
            (json!({ "level": "loud", "reason": "a test" }), "level"),
            // Every change requires a reason for the audit log.
            (json!({ "level": "info" }), "reason"),
        ] {
            let (status, problem) = call(admin, Method::PUT, "/admin/v1/log", &wrong).await.unwrap();
            assert_eq!(
                (status, &problem["errors"][0]["field"]),
                (422, &json!(field)),
                "{problem}"
            );
        }
        let (_, audit) = call(admin, Method::GET, "/admin/v1/audit", &json!(null))
            .await
            .unwrap();
        let made = audit["entries"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["outcome"] == "applied");
        let made = made.unwrap();
        assert_eq!(
            (&made["action"], &made["why"]),
            (&json!("log.put"), &json!("a test")),
            "{audit}"
        );
        let (_, now) = call(admin, Method::GET, "/admin/v1/log", &json!(null))
            .await
            .unwrap();
        assert_eq!(now["level"], level["level"], "a wrong one changes nothing");
        assert_eq!(ask().await.unwrap().0, 200);
        // The choice is logged before the response's head is sent, the end while the body is streamed.
        for message in ["chosen", "ended"] {
            loop {
                let line = lines.next_line().await.unwrap().expect("it goes on");
                assert!(!line.contains("canary"), "{line}");
                let line: Value = serde_json::from_str(&line).unwrap();
                if line["fields"]["message"] == message {
                    assert_eq!(line["span"]["trace_id"], TRACE, "{line}");
                    assert!(line["span"]["request_id"].is_string(), "{line}");
                    break;
                }
            }
        }
        // A reload applies the file's level only if the level in the file has changed.
        let becomes = async |path: &str, key: &str, wanted: Value| {
            loop {
                let (_, now) = call(admin, Method::GET, path, &json!(null)).await.unwrap();
                if now[key] == wanted {
                    return now;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let quieter = text.replace("\"warn\"", "\"error\"");
        std::fs::write(&config, &quieter).unwrap();
        becomes("/admin/v1/log", "level", json!("error")).await;
        call(admin, Method::PUT, "/admin/v1/log", &level).await.unwrap();
        let elsewhere = quieter.replace("\"json\"", "\"text\"");
        std::fs::write(&config, format!("{elsewhere}[objective]\nttft_ms = 77\n")).unwrap();
        let state = becomes("/admin/v1/config", "generation", json!(3)).await;
        assert_eq!(state["needs_restart"], json!(["log.format"]));
        becomes("/admin/v1/log", "level", level["level"].clone()).await;
    };
    tokio::time::timeout(Duration::from_secs(60), scenario)
        .await
        .unwrap();
}
