//! `doctor` against simulated engines, behind an admin port that answers as a router did, and through a proxy.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::ctl::client::{Client, Target};
use client::doctor::{Finding, Options, Report, Status, diagnose, gather};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sim_engine::{Dialect, Engine, EngineConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Answers of a router's admin port, by path.
const ANSWERS: &str = include_str!("doctor/router.json");

/// Serves fixed bodies by path, each after a pause. Returns host and port.
async fn serve(answers: BTreeMap<String, String>, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = Arc::new(answers);
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let answers = Arc::clone(&answers);
            let answer = service_fn(move |request: Request<Incoming>| {
                let found = answers.get(request.uri().path()).cloned();
                async move {
                    tokio::time::sleep(pause).await;
                    let mut response =
                        Response::new(Full::new(Bytes::from(found.clone().unwrap_or_default())));
                    if found.is_none() {
                        *response.status_mut() = StatusCode::NOT_FOUND;
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer),
            );
        }
    });
    address
}

/// Starts an admin port of a router with this worker, whose responses have reported cached tokens or not.
async fn router(worker: &str, reports: bool) -> String {
    let answers = ANSWERS.replace("http://WORKER", worker);
    let answers = match reports {
        true => answers,
        false => answers.replace(
            "\"cached_tokens_reported\": true",
            "\"cached_tokens_reported\": false",
        ),
    };
    let mut answers: BTreeMap<String, serde_json::Value> = serde_json::from_str(&answers).unwrap();
    if !reports {
        let decisions = answers.get_mut("/admin/v1/decisions").unwrap();
        for decision in decisions["decisions"].as_array_mut().unwrap() {
            decision["outcome"]["cached_tokens"] = serde_json::Value::Null;
        }
    }
    let text = |answer: serde_json::Value| answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
    let answers = answers.into_iter().map(|(path, answer)| (path, text(answer)));
    let mut answers: BTreeMap<String, String> = answers.collect();
    answers.insert("/livez".to_owned(), "alive\n".to_owned());
    serve(answers, Duration::ZERO).await
}

async fn examine(worker: &str, reports: bool, url: Option<String>) -> Report {
    let admin = router(worker, reports).await;
    let client = Client::new(Target::new(&admin, None).unwrap()).unwrap();
    let options = Options {
        worker_key: None,
        url,
        key: None,
        probes: true,
        between_readings: Duration::from_millis(1),
    };
    diagnose(&gather(&client, &admin, &options).await.unwrap())
}

#[track_caller]
fn of<'a>(report: &'a Report, check: &str) -> &'a Finding {
    report
        .findings
        .iter()
        .find(|finding| finding.check == check)
        .unwrap()
}

fn statuses(report: &Report, checks: &[&str]) -> Vec<Status> {
    checks.iter().map(|check| of(report, check).status).collect()
}

async fn engine(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        time_scale: 2.0,
        ..EngineConfig::default()
    };
    change(&mut config);
    Engine::start(config).await.unwrap()
}

#[tokio::test]
async fn doctor_passes_a_healthy_engine() {
    // Its stream takes longer than a machine stalls, so that pieces arrive apart.
    let engine = engine(|config| config.tpot_ms = 200.0).await;
    let report = examine(&engine.url(), true, Some(engine.url())).await;
    let wrong: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.status != Status::Ok)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let caching = &of(&report, "prefix caching").found;
    assert!(
        caching.contains("turns found") && caching.ends_with("in the cache"),
        "{caching}"
    );
    engine.shutdown().await;
}

#[tokio::test]
async fn doctor_judges_an_engine_without_reports_by_its_times() {
    let engine = engine(|config| {
        config.dialect = Dialect::None;
        config.cached_tokens_report = false;
    })
    .await;
    let report = examine(&engine.url(), false, None).await;
    // The times show that the prompt was cached.
    let found = statuses(&report, &["prefix caching", "cached tokens", "streams"]);
    assert_eq!(
        found,
        [Status::Ok, Status::Warning, Status::Unknown],
        "{report:#?}"
    );
    engine.shutdown().await;
}

/// Starts a worker that answers everything with bytes without end. Returns its URL.
async fn flood() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(pour(socket));
        }
    });
    format!("http://{address}")
}

async fn pour(mut socket: TcpStream) -> std::io::Result<()> {
    socket.read_buf(&mut Vec::with_capacity(4096)).await?;
    socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    loop {
        socket.write_all(&[b'\n'; 65536]).await?;
    }
}

#[tokio::test]
async fn doctor_gives_up_a_worker_whose_answer_does_not_end() {
    let report = examine(&flood().await, true, None).await;
    let clock = of(&report, "clock");
    assert_eq!(clock.status, Status::Unknown);
    assert!(
        clock.found.contains("longer than 2097152 bytes"),
        "{}",
        clock.found
    );
}

#[tokio::test]
async fn doctor_leaves_an_unreachable_worker_unknown() {
    let report = examine("http://127.0.0.1:9", true, None).await;
    let found = statuses(&report, &["prefix caching", "clock", "capacity"]);
    assert_eq!(found, [Status::Ok, Status::Unknown, Status::Ok], "{report:#?}");
    assert!(
        of(&report, "clock")
            .found
            .contains("cannot be reached from here: "),
        "{report:#?}"
    );
}

#[tokio::test]
async fn doctor_finds_a_proxy_that_collects_streams() {
    let engine = engine(|_| ()).await;
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"a \"}}]}\n\n";
    let answers = [
        ("/v1/models", "{\"data\":[{\"id\":\"sim\"}]}".to_owned()),
        ("/v1/chat/completions", piece.repeat(32)),
    ];
    let answers = answers.map(|(path, answer)| (path.to_owned(), answer));
    let proxy = serve(answers.into_iter().collect(), Duration::from_millis(200)).await;
    let report = examine(&engine.url(), true, Some(format!("http://{proxy}/v1"))).await;
    assert_eq!(of(&report, "streams").status, Status::Problem, "{report:#?}");
    assert!(!report.is_good(false));
    engine.shutdown().await;
}

#[tokio::test]
async fn doctor_needs_a_router() {
    let options = Options {
        worker_key: None,
        url: None,
        key: None,
        probes: false,
        between_readings: Duration::ZERO,
    };
    let client = Client::new(Target::new("127.0.0.1:9", None).unwrap()).unwrap();
    let error = gather(&client, "127.0.0.1:9", &options).await.unwrap_err();
    assert!(
        error.to_string().starts_with("cannot reach the admin port"),
        "{error}"
    );
}
