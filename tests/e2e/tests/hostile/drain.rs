//! A router that drains while hostile clients keep idle connections.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use crate::report::Report;
use crate::stage::{Plan, Stage};
use crate::strangers::Target;
use crate::turn;
use crate::{frames, http1, http2};

/// Limits that end no connection within the test.
const LIMITS: &str = "
[limits]
header_timeout_s = 60
client_idle_timeout_s = 60
idle_timeout_s = 60
drain_timeout_s = 20
";
/// Time to exit after SIGTERM, on a slow machine.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// More than the whole of `drain_timeout_s`.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for the clients' bytes to be read.
const READ: Duration = Duration::from_millis(300);

/// A connection kept open, whatever the router sends.
enum Held {
    One(tokio::net::TcpStream),
    Two(frames::Raw),
}

async fn held(target: &Target, what: &str) -> io::Result<Held> {
    Ok(match what {
        "an HTTP/1.1 connection that asked once" => {
            let mut stream = target.connect().await?;
            stream
                .write_all(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
                .await?;
            Held::One(stream)
        }
        "half a head" => {
            let mut stream = target.connect().await?;
            stream
                .write_all(&http1::request("ok", "", http1::QUESTION)[..40])
                .await?;
            Held::One(stream)
        }
        "an HTTP/2 connection that asked once" => Held::Two(http2::refused(target).await?),
        "an HTTP/2 connection that never asked" => Held::Two(frames::Raw::open(target, b"").await?),
        "half a header block" => Held::Two(http2::in_a_block(target, 3).await?),
        other => panic!("{other}"),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_wait_for_idle_connections_of_hostile_clients() {
    let _turn = turn().await;
    let mut report = Report::new("SIGTERM while strangers hold connections");
    for what in [
        "an HTTP/1.1 connection that asked once",
        "half a head",
        "an HTTP/2 connection that asked once",
        "an HTTP/2 connection that never asked",
        "half a header block",
    ] {
        let mut stage = Stage::start(Plan {
            engines: 1,
            limits: Some(LIMITS.to_owned()),
            ..Plan::default()
        })
        .await;
        let target = Target::new(stage.data());
        let connection = held(&target, what).await.unwrap();
        tokio::time::sleep(READ).await;
        let told = Instant::now();
        stage.router.signal("TERM");
        let well = tokio::time::timeout(PATIENCE, stage.router.ends()).await;
        let took = told.elapsed();
        report.add(
            format!("gone, with {what}"),
            format!("<= {} s", GONE_WITHIN.as_secs()),
            match well {
                Ok(true) => format!("{:.1} s", took.as_secs_f64()),
                Ok(false) => "it failed".to_owned(),
                Err(_) => "never".to_owned(),
            },
            well == Ok(true) && took <= GONE_WITHIN,
        );
        match connection {
            Held::One(stream) => drop(stream),
            Held::Two(raw) => drop(raw.stream),
        }
    }
    report.close();
}
