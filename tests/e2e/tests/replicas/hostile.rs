//! A hostile member of the bus: it has valid credentials and sends arbitrary messages.

use std::time::Duration;

use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::{until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{Replicas, join};

/// A minimal NATS client.
struct Liar(TcpStream);

impl Liar {
    async fn connect(replicas: &Replicas) -> Self {
        let mut stream = TcpStream::connect(replicas.nats.address).await.unwrap();
        stream
            .write_all(b"CONNECT {\"verbose\":false}\r\n")
            .await
            .unwrap();
        Self(stream)
    }

    async fn publish(&mut self, subject: &str, payload: &[u8]) {
        let head = format!("PUB {subject} {}\r\n", payload.len());
        let message = [head.as_bytes(), payload, b"\r\n"].concat();
        within(self.0.write_all(&message)).await.unwrap();
    }

    /// Returns the next request: its subject, its reply subject and its payload.
    async fn hear(&mut self) -> Option<(String, String, Vec<u8>)> {
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.push(self.0.read_u8().await.ok()?);
            }
            let line = String::from_utf8(line).ok()?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["MSG", subject, _, reply, length] => {
                    let mut payload = vec![0; length.parse::<usize>().ok()? + 2];
                    self.0.read_exact(&mut payload).await.ok()?;
                    return Some((subject.to_owned(), reply.to_owned(), payload));
                }
                ["PING"] => self.0.write_all(b"PONG\r\n").await.ok()?,
                _ => {}
            }
        }
    }

    /// Waits until the server has received everything.
    async fn taken(&mut self) {
        self.0.write_all(b"PING\r\n").await.unwrap();
        let mut said = Vec::new();
        within(async {
            while !said.windows(4).any(|four| four == b"PONG") {
                assert!(self.0.read_buf(&mut said).await.unwrap() > 0);
            }
        })
        .await;
    }
}

fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4 / 1024
}

async fn still_serves(replicas: &Replicas) {
    let body = ask("hi", json!({})).to_string();
    let answer = client::open(replicas.routers[0].address, "POST", CHAT, &[], body).await;
    assert_eq!(answer.unwrap().whole().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs nats-server: make test-replicas"]
async fn longest_messages_at_full_speed_neither_exhaust_memory_nor_stop_the_router() {
    let replicas = Replicas::start(1, vec![quick()]).await;
    let mut liar = Liar::connect(&replicas).await;
    let before = resident_mib();
    let long = vec![1u8; 1 << 20];
    // A body of numbers, which is parsed to its end.
    let turns = [&[1u8, 0][..], &[7; 8], &[0, 0], &[3; 160 << 10]].concat();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        for subject in [
            "test.turns",
            "test.join",
            "$KV.test.policy",
            "$KV.test.calibrations",
        ] {
            liar.publish(subject, &long).await;
            liar.publish(subject, &turns).await;
        }
        still_serves(&replicas).await;
    }
    liar.taken().await;
    let grown = resident_mib().saturating_sub(before);
    assert!(grown < 256, "{grown} MiB");
    let parts = replicas.routers[0].parts();
    assert!(parts.bus.as_ref().unwrap().is_up());
    still_serves(&replicas).await;
}

#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_revision_without_a_successor_is_reported_and_ignored() {
    let replicas = Replicas::start(1, vec![quick()]).await;
    let parts = replicas.routers[0].parts();
    until("the policy is shared", || parts.state.routing.policy.is_shared()).await;
    let before = parts.state.routing.policy.now().0.settings.clone();
    let mut liar = Liar::connect(&replicas).await;
    for lie in [
        json!({ "lineage": 1, "revision": u64::MAX, "settings": {}, "since_unix_ms": 0, "by": "b", "replica": "r", "reason": null, "source": "put" }).to_string(),
        json!({ "lineage": 1, "revision": 9, "settings": { "weights": { "load": -1e300 } }, "since_unix_ms": u64::MAX, "by": "b", "replica": "r", "reason": null, "source": "put" }).to_string(),
        "\u{0}".repeat(100 << 10),
    ] {
        liar.publish("$KV.test.policy", lie.as_bytes()).await;
        within(async {
            while !replicas.says_of_the_others(0).await["policy"]["error"]
                .as_str()
                .is_some_and(|error| error.contains("is invalid"))
            {}
        })
        .await;
        assert_eq!(parts.state.routing.policy.now().0.settings, before);
        still_serves(&replicas).await;
    }
}

/// Sends an offer, and the chunks of an endless snapshot.
#[tokio::test]
#[ignore = "needs nats-server: make test-replicas"]
async fn an_endless_snapshot_does_not_delay_readiness() {
    let mut replicas = Replicas::start(1, vec![quick()]).await;
    let mut liar = Liar::connect(&replicas).await;
    liar.0
        .write_all(b"SUB test.join 1\r\nSUB test.join.* 2\r\n")
        .await
        .unwrap();
    liar.taken().await;
    tokio::spawn(async move {
        while let Some((asked, reply, payload)) = liar.hear().await {
            let answer = if asked == "test.join" {
                [
                    &b"tr-off-1"[..],
                    &1u64.to_le_bytes(),
                    &u64::MAX.to_le_bytes(),
                    b"liar",
                ]
                .concat()
            } else {
                let number = &payload[16..20];
                [
                    &b"tr-chk-1"[..],
                    &9u64.to_le_bytes(),
                    number,
                    &u32::MAX.to_le_bytes(),
                    b"x",
                ]
                .concat()
            };
            liar.publish(&reply, &answer).await;
        }
    });
    let begun = Instant::now();
    let late = join(&replicas.engines, &replicas.nats.url(), "late").await;
    until("it does not wait", || !late.parts().is_joining()).await;
    // Readiness waits for two seconds at most, the transfer takes 20.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    replicas.routers.push(late);
    let address = replicas.routers[1].address;
    let body = ask("hi", json!({})).to_string();
    assert_eq!(
        client::open(address, "POST", CHAT, &[], body)
            .await
            .unwrap()
            .whole()
            .await
            .status,
        200
    );
}
