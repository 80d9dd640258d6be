use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::*;
use crate::answers::Carrier;
use crate::client_io::ClientIo;
use tailroute_http::body::{self, Body, BodyError};

/// A piece of a response, or the error that ends it early.
type Piece = Result<Frame<Bytes>, BodyError>;

fn data(piece: impl Into<Bytes>) -> Piece {
    Ok(Frame::data(piece.into()))
}

/// Returns a connection that answers each request with the next of these bodies, and the number of times that hyper
/// polled it.
async fn served(mut answers_to_give: mpsc::Receiver<Body>) -> (TcpStream, Arc<AtomicUsize>) {
    let (client, shared) = SharedSocket::pair().await;
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    // A small buffer, so that writes are sometimes accepted only partly.
    socket2::SockRef::from(shared.socket.tcp())
        .set_send_buffer_size(8 * 1024)
        .unwrap();
    socket2::SockRef::from(&client)
        .set_recv_buffer_size(16 * 1024)
        .unwrap();
    tokio::spawn(async move {
        let answers = Arc::new(Answers::new(Duration::from_secs(60)));
        let io = ClientIo::new(Arc::clone(&shared), None, Duration::from_secs(60));
        let mut fast_path = FastPath::new(&shared, &answers);
        let (sending, progress) = (Arc::clone(&answers), Arc::clone(shared.progress()));
        let (mut builder, next) = (
            Builder::new(TokioExecutor::new()),
            Arc::new(Mutex::new(move || answers_to_give.try_recv().unwrap())),
        );
        builder.http1().writev(false);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let answer = Response::new(next.lock()());
            let carrier = Carrier::of(&request);
            let answer = Arc::clone(&sending).send(answer, carrier, progress.request_began());
            async { Ok::<_, std::convert::Infallible>(answer) }
        });
        let mut connection = std::pin::pin!(
            builder
                .serve_connection_with_upgrades(TokioIo::new(io), service)
                .into_owned()
        );
        let mut connection = std::pin::pin!(std::future::poll_fn(|cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            connection.as_mut().poll(cx)
        }));
        let _ = std::future::poll_fn(|cx| fast_path.poll(cx, |cx| connection.as_mut().poll(cx))).await;
    });
    (client, polls)
}

/// Returns a response body and the sender of its pieces.
fn answer() -> (mpsc::Sender<Piece>, Body) {
    let (sender, mut pieces) = mpsc::channel(4);
    let pieces = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
    (sender, body::streaming(StreamBody::new(pieces)))
}

async fn ask(client: &mut TcpStream, line: &str) {
    client
        .write_all(format!("{line}\r\nhost: x\r\n\r\n").as_bytes())
        .await
        .unwrap();
}

/// Reads a chunked response. Returns the body and true, or the received bytes and false if the connection ends early.
async fn read_chunked(client: &mut TcpStream, rest_after: Duration) -> (Vec<u8>, bool) {
    let mut wire = Vec::new();
    loop {
        if let Some(end) = whole(&wire) {
            return (end, true);
        }
        let mut some = [0; 3000];
        match client.read(&mut some).await {
            Ok(count) if count > 0 => wire.extend_from_slice(&some[..count]),
            _ => return (wire, false),
        }
        if !rest_after.is_zero() {
            tokio::time::sleep(rest_after).await;
        }
    }
}

/// Decodes a complete chunked response (RFC 9112, section 7.1).
fn whole(wire: &[u8]) -> Option<Vec<u8>> {
    let head = memchr::memmem::find(wire, b"\r\n\r\n")? + 4;
    assert!(String::from_utf8_lossy(&wire[..head]).contains("transfer-encoding: chunked"));
    let (mut rest, mut body) = (&wire[head..], Vec::new());
    loop {
        let line = memchr::memmem::find(rest, b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let chunk = rest.get(line + 2..line + 2 + size + 2)?;
        assert!(chunk.ends_with(b"\r\n"));
        body.extend_from_slice(&chunk[..size]);
        rest = &rest[line + 2 + size + 2..];
        if size == 0 {
            assert!(rest.is_empty(), "something after the end");
            return Some(body);
        }
    }
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            tokio::time::timeout(Duration::from_secs(30), future)
                .await
                .unwrap()
        })
}

/// Generates sizes of pieces, and whether a pause precedes each.
fn pieces() -> impl Strategy<Value = Vec<(usize, bool)>> {
    let size = prop_oneof![
        2 => Just(0_usize),
        10 => 1..200_usize,
        3 => 1..20_000_usize,
        1 => body::MOST_BYTES - 1..body::MOST_BYTES + 3,
    ];
    proptest::collection::vec((size, any::<bool>()), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_slow_reader_gets_all_pieces_in_order(
        turns in proptest::collection::vec(pieces(), 1..3),
        is_slow in any::<bool>(),
    ) {
        run(async move {
            let (give, given) = mpsc::channel(4);
            let (mut client, _) = served(given).await;
            for turn in turns {
                let (sender, pieces) = answer();
                give.send(pieces).await.unwrap();
                let mut all = Vec::new();
                let sizes = turn.clone();
                for (at, (size, _)) in turn.into_iter().enumerate() {
                    all.extend((0..size).map(|byte| (byte * 31 + at) as u8));
                }
                let expected = all.clone();
                tokio::spawn(async move {
                    let mut all = &all[..];
                    for (size, waits) in sizes {
                        if waits {
                            tokio::time::sleep(Duration::from_micros(300)).await;
                        }
                        let (piece, rest) = all.split_at(size);
                        all = rest;
                        sender.send(data(piece.to_vec())).await.unwrap();
                    }
                });
                ask(&mut client, "GET / HTTP/1.1").await;
                let rest = Duration::from_micros(if is_slow { 200 } else { 0 });
                let (got, ended) = read_chunked(&mut client, rest).await;
                assert!(ended);
                assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
            }
        });
    }
}

#[tokio::test]
async fn hyper_is_polled_only_at_the_beginning_and_the_end() {
    let (give, given) = mpsc::channel(4);
    let (mut client, polls) = served(given).await;
    let (sender, pieces) = answer();
    give.send(pieces).await.unwrap();
    ask(&mut client, "GET / HTTP/1.1").await;
    let mut some = [0; 1000];
    for _ in 0..100 {
        sender.send(data("piece")).await.unwrap();
        assert!(client.read(&mut some).await.unwrap() > 0);
    }
    drop(sender);
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        assert!(client.read_buf(&mut rest).await.unwrap() > 0);
    }
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls < 12, "{polls} for 100 pieces");
}

#[tokio::test]
async fn a_truncated_response_is_not_terminated() {
    let (give, given) = mpsc::channel(4);
    let (mut client, _) = served(given).await;
    let (sender, pieces) = answer();
    give.send(pieces).await.unwrap();
    ask(&mut client, "GET / HTTP/1.1").await;
    for piece in [data("one"), data("two"), Err("it broke".into())] {
        tokio::time::sleep(Duration::from_millis(2)).await;
        sender.send(piece).await.unwrap();
    }
    let (wire, ended) = read_chunked(&mut client, Duration::ZERO).await;
    assert!(!ended);
    assert!(
        wire.ends_with(b"3\r\none\r\n3\r\ntwo\r\n"),
        "{}",
        String::from_utf8_lossy(&wire)
    );
}

#[tokio::test]
async fn the_response_is_dropped_when_its_client_disconnects() {
    let (give, given) = mpsc::channel(4);
    let (mut client, _) = served(given).await;
    let (sender, pieces) = answer();
    give.send(pieces).await.unwrap();
    ask(&mut client, "GET / HTTP/1.1").await;
    sender.send(data("piece")).await.unwrap();
    let mut some = [0; 1000];
    assert!(client.read(&mut some).await.unwrap() > 0);
    drop(client);
    tokio::time::timeout(Duration::from_secs(5), sender.closed())
        .await
        .expect("nobody reads it any more");
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_chunks() {
    for (line, body) in [("GET / HTTP/1.0", &b"onetwo"[..]), ("HEAD / HTTP/1.0", b"")] {
        let (give, given) = mpsc::channel(4);
        let (mut client, _) = served(given).await;
        let (sender, pieces) = answer();
        give.send(pieces).await.unwrap();
        ask(&mut client, line).await;
        let pieces = futures_util::stream::iter([data("one"), data("two")]);
        pieces
            .for_each(|piece| async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let _ = sender.send(piece).await;
            })
            .await;
        drop(sender);
        let mut wire = Vec::new();
        client.read_to_end(&mut wire).await.unwrap();
        assert!(
            wire.ends_with(&[b"\r\n\r\n", body].concat()),
            "{line}: {}",
            String::from_utf8_lossy(&wire)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_written_before_its_body_is_dropped() {
    /// Blocks in `drop` until the client has read everything.
    struct Behind(std::sync::mpsc::Receiver<()>, mpsc::Sender<bool>);
    impl Drop for Behind {
        fn drop(&mut self) {
            let was_read = self.0.recv_timeout(Duration::from_secs(5)).is_ok();
            let _ = self.1.try_send(was_read);
        }
    }
    for ends_after in [Duration::ZERO, Duration::from_millis(20)] {
        let ((say, said), (tell, mut told)) = (std::sync::mpsc::channel(), mpsc::channel(1));
        let (give, given) = mpsc::channel(4);
        let (mut client, _) = served(given).await;
        let (sender, mut pieces) = mpsc::channel::<Piece>(4);
        let behind = Behind(said, tell);
        let pieces = futures_util::stream::poll_fn(move |cx| {
            let _ = &behind;
            pieces.poll_recv(cx)
        });
        give.send(body::streaming(StreamBody::new(pieces))).await.unwrap();
        sender.send(data("all of it")).await.unwrap();
        ask(&mut client, "GET / HTTP/1.1").await;
        tokio::time::sleep(ends_after).await;
        drop(sender);
        let (got, ended) = read_chunked(&mut client, Duration::ZERO).await;
        assert!(ended && got == b"all of it");
        say.send(()).unwrap();
        assert_eq!(told.recv().await, Some(true), "dropped before it was written");
    }
}

#[tokio::test]
async fn hyper_is_repolled_at_once_up_to_a_limit() {
    let (_client, shared) = SharedSocket::pair().await;
    // How often hyper can go on, and how often it is polled in the connection's first turn.
    for (goes_on, expected) in [(0, 1), (3, 4), (1000, MOST_POLLS)] {
        let answers = Answers::new(Duration::from_secs(60));
        let mut fast_path = FastPath::new(&shared, &answers);
        let mut polls = 0;
        let mut hyper = std::pin::pin!(std::future::poll_fn(|cx| {
            if polls < goes_on {
                cx.waker().wake_by_ref();
            }
            polls += 1;
            Poll::<()>::Pending
        }));
        let first =
            std::future::poll_fn(|cx| Poll::Ready(fast_path.poll(cx, |cx| hyper.as_mut().poll(cx)))).await;
        assert!(first.is_pending());
        assert_eq!(polls, expected);
    }
}
