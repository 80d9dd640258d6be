use std::net::SocketAddr;

use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::body::{BodyPiece, Pieces as _, PolledFrame};

async fn listen() -> (TcpListener, Arc<Origin>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = origin(listener.local_addr().unwrap());
    (listener, origin)
}

fn origin(address: SocketAddr) -> Arc<Origin> {
    let url = format!("http://{address}").parse().unwrap();
    Origin::new(&url, Duration::from_secs(1), Duration::from_secs(4)).unwrap()
}

fn request(body: impl Into<Bytes>) -> Request<Bytes> {
    Request::post("http://w/v1/chat/completions")
        .body(body.into())
        .unwrap()
}

/// Reads a request with a body of `length` bytes.
async fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n")
            && bytes.len() == end + 4 + length
        {
            return String::from_utf8(bytes).unwrap();
        }
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "closed early");
    }
}

async fn whole(reply: PendingResponse) -> (u16, Bytes) {
    let response = reply.await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_connection_is_reused_only_after_its_response_has_ended() {
    let (listener, origin) = listen().await;
    let engine = tokio::spawn(async move {
        let (mut one, _) = listener.accept().await.unwrap();
        assert!(
            read(&mut one, 2)
                .await
                .starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:")
        );
        one.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
            .await
            .unwrap();
        let (mut two, _) = listener.accept().await.unwrap();
        read(&mut two, 2).await;
        two.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb")
            .await
            .unwrap();
        read(&mut two, 2).await;
        two.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nc")
            .await
            .unwrap();
        one.write_all(b"0\r\n\r\n").await.unwrap();
        read(&mut two, 0).await;
        (one, two)
    });
    let first = origin.send(request("{}")).await.unwrap();
    assert_eq!(
        whole(origin.send(request("{}"))).await,
        (200, Bytes::from_static(b"b"))
    );
    assert_eq!(
        whole(origin.send(request("{}"))).await,
        (200, Bytes::from_static(b"c"))
    );
    assert!(!first.body().is_end_stream());
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "a");
    assert_eq!(origin.idle.lock().len(), 2);
    drop(origin.take());
    let waiting = origin.send(request(""));
    tokio::select! {
        _ = waiting => panic!("nobody answers"),
        ended = engine => drop(ended.unwrap()),
    }
}

#[tokio::test]
async fn a_connection_closed_by_the_worker_is_not_reused() {
    let (listener, origin) = listen().await;
    let engine = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream, 2).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na")
                .await
                .unwrap();
            drop(stream);
        }
    });
    assert_eq!(whole(origin.send(request("{}"))).await.0, 200);
    // Wait until the kernel reports the close, before anything is written.
    let kept = origin.idle.lock().pop_back().unwrap();
    kept.stream.readable().await.unwrap();
    origin.idle.lock().push_back(kept);
    assert_eq!(whole(origin.send(request("{}"))).await.0, 200);
    engine.await.unwrap();
}

#[tokio::test]
async fn a_connection_with_unsolicited_bytes_is_not_reused() {
    let (listener, origin) = listen().await;
    let engine = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read(&mut stream, 2).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n")
            .await
            .unwrap();
        // The client has closed the connection.
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    });
    assert_eq!(
        whole(origin.send(request("{}"))).await,
        (200, Bytes::from_static(b"a"))
    );
    engine.await.unwrap();
    assert!(origin.take().is_none());
}

#[tokio::test]
async fn a_response_sent_before_the_whole_request_was_written_is_accepted() {
    let (listener, origin) = listen().await;
    let engine = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 1024];
        stream.read_exact(&mut some).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        stream
    });
    let response = origin.send(request(vec![b' '; 64 << 20])).await.unwrap();
    assert_eq!(response.status(), 413);
    drop(response);
    assert!(origin.take().is_none(), "the rest of the request was not written");
    drop(engine.await.unwrap());
}

#[tokio::test]
async fn a_truncated_response_is_an_error() {
    for half in [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\nx\r\n",
    ] {
        let (listener, origin) = listen().await;
        let engine = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream, 2).await;
            stream.write_all(half.as_bytes()).await.unwrap();
        });
        let mut body = origin.send(request("{}")).await.unwrap().into_body();
        let mut last = None;
        while let Some(frame) = body.frame().await {
            last = Some(frame);
            if last.as_ref().is_some_and(Result::is_err) {
                break;
            }
        }
        assert!(last.unwrap().is_err(), "{half}");
        engine.await.unwrap();
    }
}

#[tokio::test]
async fn dropping_a_pending_response_closes_the_connection() {
    let (listener, origin) = listen().await;
    let (tell, mut asked) = mpsc::channel(2);
    let engine = tokio::spawn(async move {
        for answered in [false, true] {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream, 2).await;
            tell.send(()).await.unwrap();
            if answered {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab")
                    .await
                    .unwrap();
            }
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
        }
    });
    tokio::select! {
        _ = origin.send(request("{}")) => panic!("nobody answers"),
        _ = asked.recv() => {}
    }
    drop(origin.send(request("{}")).await.unwrap());
    engine.await.unwrap();
}

#[tokio::test]
async fn errors_before_and_after_the_first_written_byte_are_distinguished() {
    let (listener, origin) = listen().await;
    let engine = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read(&mut stream, 2).await;
    });
    assert!(matches!(origin.send(request("{}")).await, Err(Error::Lost(_))));
    engine.await.unwrap();
    let refused = origin.send(request("{}")).await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
}

#[tokio::test]
async fn an_idle_connection_is_dropped_before_the_worker_closes_it() {
    let (listener, origin) = listen().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read(&mut stream, 2).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        stream.read(&mut [0; 1]).await
    });
    whole(origin.send(request("{}"))).await;
    origin.tidy();
    assert_eq!(origin.idle.lock().len(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    origin.tidy();
    assert_eq!(origin.idle.lock().len(), 0);
}

#[test]
fn https_urls_have_no_plain_text_origin() {
    let limit = Duration::from_secs(1);
    assert!(Origin::new(&"https://w/".parse().unwrap(), limit, limit).is_none());
    let named = Origin::new(&"http://u:p@[::1]:7/base".parse().unwrap(), limit, limit).unwrap();
    assert_eq!((named.host.as_str(), named.port), ("::1", 7));
    assert_eq!(named.authority, "[::1]:7");
}

/// Polls an answer for pieces and notifies `seen` of each. Returns the pieces and the frame that ended them.
async fn pieces(mut answer: ResponseBody, seen: mpsc::Sender<()>) -> (Vec<Vec<u8>>, PolledFrame) {
    let mut pieces = Vec::new();
    loop {
        let mut out = b"before".to_vec();
        let piece = std::future::poll_fn(|cx| answer.poll_piece(cx, &mut out)).await;
        let added = out.strip_prefix(b"before").unwrap();
        match piece {
            BodyPiece::Added => {
                pieces.push(added.to_vec());
                let _ = seen.send(()).await;
            }
            BodyPiece::Frame(given) => {
                assert!(added.is_empty(), "what is given is not added");
                return (pieces, given);
            }
        }
    }
}

/// Reads of one connection, in order.
type Wire = &'static [&'static [u8]];

#[tokio::test]
async fn pieces_are_the_bodys_data_and_its_end_is_returned_as_a_frame() {
    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let cases: [(Wire, Wire, &str); 6] = [
        (
            &[CHUNKED, b"2\r\nbc\r\n1\r\nd\r\n", b"0\r\n\r\n"],
            &[b"a", b"bcd"],
            "end",
        ),
        (&[CHUNKED, b"2\r\nb", b"c\r\n0\r\n\r\n"], &[b"a", b"b"], "last c"),
        (&[CHUNKED, b"0\r\nx-t: 1\r\n\r\n"], &[b"a"], "trailers"),
        (&[CHUNKED, b"2\r\nb"], &[b"a", b"b"], "error"),
        (&[CHUNKED, b"1\r\nb\r\nno size\r\n"], &[b"a"], "error"),
        (
            &[b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na", b"b", b"c"],
            &[b"a", b"b"],
            "last c",
        ),
    ];
    for (wire, expected, end) in cases {
        let (listener, origin) = listen().await;
        let (seen, mut passed) = mpsc::channel(1);
        let engine = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream, 2).await;
            for (at, piece) in wire.iter().enumerate() {
                if at > 0 {
                    passed.recv().await;
                }
                stream.write_all(piece).await.unwrap();
            }
            if end == "error" {
                passed.recv().await;
            }
        });
        let answer = origin.send(request("{}")).await.unwrap().into_body();
        let (pieces, given) = pieces(answer, seen).await;
        assert_eq!(pieces, expected, "{end}");
        let given = match given {
            None => "end".to_owned(),
            Some(Err(_)) => "error".to_owned(),
            Some(Ok(frame)) if frame.is_trailers() => "trailers".to_owned(),
            Some(Ok(frame)) => format!("last {}", String::from_utf8_lossy(frame.data_ref().unwrap())),
        };
        assert_eq!(given, end);
        engine.await.unwrap();
    }
}
