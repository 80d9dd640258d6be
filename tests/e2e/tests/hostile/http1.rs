//! Hostile clients with valid or invalid HTTP/1.1.

use std::io;
use std::time::Duration;

use tailroute_e2e::client::CHAT;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::stage::{RUDE, bearer};
use crate::strangers::{Ends, Kind, Target, read_to_end, until_closed};

/// Interval between the pieces of a slow client.
const SLOWLY: Duration = Duration::from_millis(200);
/// Time for a request to reach its worker before its client disconnects.
const ARRIVED: Duration = Duration::from_millis(50);
/// Time that a client stays without reading.
const UNREAD: Duration = Duration::from_secs(10);

/// Fields that would steer key-value cache transfers between engines, in several spellings.
const TRANSFERS: [&str; 7] = [
    r#""kv_transfer_params":{"do_remote_prefill":true}"#,
    r#""kv_transfer_params":null,"kv_transfer_params":{"do_remote_prefill":true}"#,
    r#""kv\u005ftransfer\u005fparams":{"do_remote_prefill":true}"#,
    r#""extra_body":{"kv_transfer_params":{"do_remote_prefill":true}}"#,
    r#""vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true}}"#,
    r#""bootstrap_host":"do_remote_prefill","bootstrap_port":1,"bootstrap_room":1"#,
    r#""disaggregated_params":{"request_type":"do_remote_prefill"}"#,
];

/// Bytes after a request whose client disconnects before the response.
const BEHIND: [&[u8]; 4] = [
    b"\r\n",
    b"P",
    b"GET /v1/models HTTP/1.1\r\nhost: router.test\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: router.test\r\ncontent-length: 2\r\n\r\n{}",
];

const CHUNKS: [&str; 6] = [
    "ffffffffffffffff\r\n",
    "7fffffffffffffff\r\n{",
    "100000000000000000\r\n{",
    "-1\r\n{",
    "0x10\r\n{",
    "00000000000000000000000000000000000001;a=b\r\n{",
];

pub(crate) const KINDS: [Kind; 14] = [
    Kind {
        name: "HTTP/1.1: silence",
        connections: 40,
        ends: Ends::Router,
        life: |target| Box::pin(async move { slowly(target, b"", b"").await }),
    },
    Kind {
        name: "HTTP/1.1: a head that comes slowly",
        connections: 40,
        ends: Ends::Router,
        life: |target| Box::pin(async move { slowly(target, b"GET /v1/mo", b"x").await }),
    },
    Kind {
        name: "HTTP/1.1: fields that come slowly",
        connections: 40,
        ends: Ends::Router,
        life: |target| {
            Box::pin(async move { slowly(target, b"GET / HTTP/1.1\r\nhost: a\r\n", b"x: y\r\n").await })
        },
    },
    Kind {
        name: "HTTP/1.1: half a head of 320 kB",
        connections: 200,
        ends: Ends::Router,
        life: |target| Box::pin(half_a_head(target)),
    },
    Kind {
        name: "HTTP/1.1: half a request",
        connections: 100,
        ends: Ends::Router,
        life: |target| Box::pin(half_a_request(target)),
    },
    Kind {
        name: "HTTP/1.1: a body that comes slowly",
        connections: 40,
        ends: Ends::Router,
        life: |target| {
            Box::pin(async move {
                let head = head("content-length: 100000");
                slowly(target, &[head.as_bytes(), b"{"].concat(), b" ").await
            })
        },
    },
    Kind {
        name: "HTTP/1.1: chunks that come slowly",
        connections: 40,
        ends: Ends::Router,
        life: |target| {
            Box::pin(async move {
                slowly(
                    target,
                    head("transfer-encoding: chunked").as_bytes(),
                    b"1\r\n \r\n",
                )
                .await
            })
        },
    },
    Kind {
        name: "HTTP/1.1: absurd sizes of chunks",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(absurd_chunks(target)),
    },
    Kind {
        name: "HTTP/1.1: a body that breaks off",
        connections: 10,
        ends: Ends::Stranger,
        life: |target| Box::pin(breaks_off(target)),
    },
    Kind {
        name: "HTTP/1.1: gone before the answer, plainly",
        connections: 10,
        ends: Ends::Stranger,
        life: |target| Box::pin(async move { leaves(target, b"").await }),
    },
    Kind {
        name: "HTTP/1.1: gone before the answer, with more behind the request",
        connections: 20,
        ends: Ends::Stranger,
        life: |target| {
            Box::pin(async move {
                let behind = target.next(&BEHIND);
                leaves(target, behind).await
            })
        },
    },
    Kind {
        name: "HTTP/1.1: an answer that is not read",
        connections: 20,
        ends: Ends::Stranger,
        life: |target| Box::pin(never_reads(target)),
    },
    Kind {
        name: "HTTP/1.1: a model's name of 1 MB",
        connections: 2,
        ends: Ends::Stranger,
        life: |target| Box::pin(long_name(target)),
    },
    Kind {
        name: "HTTP/1.1: fields that steer engines",
        connections: 4,
        ends: Ends::Stranger,
        life: |target| Box::pin(steers(target)),
    },
];

fn head(field: &str) -> String {
    let bearer = bearer(RUDE);
    format!("POST {CHAT} HTTP/1.1\r\nhost: router.test\r\nauthorization: {bearer}\r\n{field}\r\n\r\n")
}

/// Returns a complete request to a hostile worker, which answers in this mode.
pub(crate) fn request(mode: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    (head(&format!("{fields}x-mode: {mode}\r\ncontent-length: {length}")) + body).into_bytes()
}

/// A question to the hostile workers' model.
pub(crate) const QUESTION: &str = r#"{"model":"evil","messages":[{"role":"user","content":"hi"}]}"#;

async fn slowly(target: Target, first: &[u8], piece: &'static [u8]) -> io::Result<()> {
    let mut stream = target.connect().await?;
    stream.write_all(first).await?;
    until_closed(stream, piece, SLOWLY).await
}

pub(crate) async fn half_a_head(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    let mut bytes = b"GET /v1/models HTTP/1.1\r\nhost: router.test\r\n".to_vec();
    for number in 0..20 {
        bytes.extend_from_slice(format!("x-{number}: {}\r\n", "a".repeat(15_900)).as_bytes());
    }
    // The connection is closed if the router reads no further.
    let _ = stream.write_all(&bytes[..bytes.len() - 2]).await;
    until_closed(stream, b"", SLOWLY).await
}

async fn half_a_request(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    let bytes = request("ok", "", QUESTION);
    let part = 1 + target.number() * 7 % (bytes.len() - 1);
    stream.write_all(&bytes[..part]).await?;
    until_closed(stream, b"", SLOWLY).await
}

async fn absurd_chunks(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    stream
        .write_all(head("transfer-encoding: chunked").as_bytes())
        .await?;
    stream.write_all(target.next(&CHUNKS).as_bytes()).await?;
    let said = read_to_end(&mut stream).await;
    if said.starts_with(b"HTTP/1.1 2") {
        target.wrong(format!(
            "2xx to a body that cannot be: {}",
            String::from_utf8_lossy(&said)
        ));
    }
    Ok(())
}

async fn breaks_off(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    stream
        .write_all(head("content-length: 100000").as_bytes())
        .await?;
    stream.write_all(&[b' '; 50_000]).await?;
    tokio::time::sleep(ARRIVED).await;
    hang_up(&target, &stream)
}

pub(crate) async fn leaves(target: Target, behind: &[u8]) -> io::Result<()> {
    let mut stream = target.connect().await?;
    stream.write_all(&request("hang", "", QUESTION)).await?;
    stream.write_all(behind).await?;
    tokio::time::sleep(ARRIVED).await;
    hang_up(&target, &stream)
}

/// Disconnects, by a reset on every other connection.
fn hang_up(target: &Target, stream: &TcpStream) -> io::Result<()> {
    if target.number().is_multiple_of(2) {
        stream.set_zero_linger()?;
    }
    Ok(())
}

async fn never_reads(target: Target) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(target.data).await?;
    stream.write_all(&request("big", "", QUESTION)).await?;
    tokio::time::sleep(UNREAD).await;
    Ok(())
}

async fn long_name(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    let name = format!("{}-{}", target.number(), "m".repeat(1_000_000));
    let body = QUESTION.replace("evil", &name);
    stream
        .write_all(&request("ok", "connection: close\r\n", &body))
        .await?;
    let said = read_to_end(&mut stream).await;
    if said.starts_with(b"HTTP/1.1 2") {
        target.wrong("2xx for a model's name of 1 MB");
    }
    tokio::time::sleep(SLOWLY).await;
    Ok(())
}

async fn steers(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    let field = target.next(&TRANSFERS);
    let body = QUESTION.replacen('{', &format!("{{{field},"), 1);
    stream
        .write_all(&request("ok", "connection: close\r\n", &body))
        .await?;
    let said = read_to_end(&mut stream).await;
    if !said.starts_with(b"HTTP/1.1 400 ") {
        let line = String::from_utf8_lossy(&said[..said.len().min(40)]).into_owned();
        target.wrong(format!("{line:?} to {field}"));
    }
    tokio::time::sleep(SLOWLY).await;
    Ok(())
}
