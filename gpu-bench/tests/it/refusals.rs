//! Workers that cannot be measured are refused with the reason, and what was measured before stays.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clap::Parser as _;
use gpu_bench::cmd::worker::{Args, measure, run};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(address: SocketAddr, more: &[&str]) -> Args {
    let url = format!("http://{address}/v1");
    let small = [
        "--history",
        "0,64",
        "--uncached",
        "8,16,32",
        "--repeats",
        "3",
        "--model",
        "m",
    ];
    Cli::parse_from(["worker", &url].iter().chain(&small).chain(more)).args
}

/// A worker whose n-th answer is `answer(n)`: a content type and a body.
async fn worker(answer: impl Fn(u64) -> (u16, &'static str, String) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answer, count) = (Arc::new(answer), Arc::new(AtomicU64::new(0)));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            let service = service_fn(move |request: Request<Incoming>| {
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                async move {
                    let path = request.uri().path().to_owned();
                    request.into_body().collect().await.unwrap();
                    let models = r#"{"data":[{"id":"m","max_model_len":1024}]}"#;
                    let (status, kind, body) = match path.as_str() {
                        "/v1/models" => (200, "application/json", models.to_owned()),
                        "/v1/chat/completions" => answer(count.fetch_add(1, Ordering::Relaxed)),
                        _ => (404, "text/plain", "nothing here".to_owned()),
                    };
                    let response = Response::builder().status(status).header("content-type", kind);
                    Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap())
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
        }
    });
    address
}

fn stream(prompt: u64, cached: Option<u64>) -> (u16, &'static str, String) {
    let details = cached.map_or(String::new(), |cached| {
        format!(r#","prompt_tokens_details":{{"cached_tokens":{cached}}}"#)
    });
    let body = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}\n\n\
         data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":1{details}}}}}\n\ndata: [DONE]\n\n"
    );
    (200, "text/event-stream", body)
}

/// Why a worker is not measured. No calibration is written.
async fn refusal(address: SocketAddr) -> String {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("calibration.json");
    let args = args(address, &["--out", out.to_str().unwrap()]);
    let said = format!("{:#}", measure(&args).await.unwrap_err());
    assert!(!out.exists(), "{said}");
    said
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let said = refusal(address).await;
    assert!(said.starts_with("the worker cannot be reached"), "{said}");
}

#[tokio::test]
async fn a_worker_whose_stream_is_longer_than_any() {
    let line = ":".repeat(1 << 16) + "\n";
    let said = refusal(worker(move |_| (200, "text/event-stream", line.repeat(1_030))).await).await;
    assert!(said.contains("more than 67108864 bytes"), "{said}");
}

#[tokio::test]
async fn a_worker_whose_error_would_control_the_terminal() {
    let said = refusal(worker(|_| (500, "text/plain", "\x1b[2K\u{9b}gone".to_owned())).await).await;
    assert!(
        said.contains(r"\u001b[2K\u009bgone") && !said.contains('\x1b'),
        "{said}"
    );
}

#[tokio::test]
async fn a_worker_that_does_not_stream() {
    let said = refusal(worker(|_| (200, "application/json", "{}".to_owned())).await).await;
    assert!(
        said.contains("does not stream") && said.contains("application/json"),
        "{said}"
    );
}

#[tokio::test]
async fn a_worker_that_wants_a_key() {
    for status in [401, 403] {
        let said =
            refusal(worker(move |_| (status, "application/json", "who are you?".to_owned())).await).await;
        assert!(
            said.contains("--api-key-file") && said.contains(&status.to_string()),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_worker_that_refuses() {
    let said = refusal(worker(|_| (400, "application/json", "prompt too long".to_owned())).await).await;
    assert!(said.contains("answered 400: prompt too long"), "{said}");
}

#[tokio::test]
async fn a_worker_that_does_not_report_cached_tokens() {
    let said = refusal(worker(|at| stream(100 + at % 2 * 300, None)).await).await;
    assert!(
        said.contains("no cached tokens reported") && said.contains("--enable-prompt-tokens-details"),
        "{said}"
    );
}

#[tokio::test]
async fn a_worker_that_dies_in_the_middle() {
    let address = worker(|at| match at {
        0 => stream(130, None),
        1 | 2 => stream(514, Some(500)),
        _ => (503, "text/plain", "gone".to_owned()),
    })
    .await;
    let said = refusal(address).await;
    assert!(
        said.starts_with("the worker fails too often") && said.contains("503: gone"),
        "{said}"
    );
}

#[tokio::test]
async fn a_worker_whose_time_has_nothing_to_do_with_its_prompts() {
    // The same usage whatever was sent: α, β and γ cannot be told apart.
    let said = refusal(worker(|at| stream(if at == 0 { 130 } else { 514 }, Some(500))).await).await;
    assert!(said.contains("do not determine α, β and γ"), "{said}");
}

#[test]
fn a_failure_leaves_the_older_calibration_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("calibration.json");
    fs::write(&out, "older").unwrap();
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    assert!(run(&args(nowhere, &["--out", out.to_str().unwrap()])).is_err());
    assert_eq!(fs::read_to_string(&out).unwrap(), "older");
}

#[test]
fn the_program_says_what_is_wrong_and_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_gpu-bench"));
    program
        .args(["worker", "http://127.0.0.1:1"])
        .current_dir(folder.path());
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: the worker cannot be reached"), "{said}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing was written"
    );
}
