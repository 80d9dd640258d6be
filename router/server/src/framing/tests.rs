use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::Index;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::lines::{MAX_FIELDS, MAX_NAME_BYTES, MAX_TARGET_BYTES};
use super::*;
use crate::check::FramingCheck;
use crate::client_io::{self, ClientIo};
use crate::shared_socket::SharedSocket;
use tailroute_http::byte_reservation::ByteReservation;

const HOST: &str = "host: h\r\n";

/// Reads a stream in parts, cut at `cuts`. Returns the offset in the stream of a rejected line.
fn refused(stream: &[u8], cuts: &[usize]) -> Option<usize> {
    let mut framing = Framing::new(usize::MAX);
    let mut start = 0;
    let ends = cuts.iter().copied().chain([stream.len()]);
    for end in ends {
        if let Err(refused) = framing.read(&stream[start..end]) {
            assert_eq!(framing.read(b"x").unwrap_err().at, 0, "it stays refused");
            return Some(start + refused.at);
        }
        start = end;
    }
    None
}

fn whole(stream: &str) -> Option<usize> {
    let found = refused(stream.as_bytes(), &[]);
    // The cuts make no difference.
    let every: Vec<usize> = (1..stream.len()).collect();
    assert_eq!(
        refused(stream.as_bytes(), &every).is_some(),
        found.is_some(),
        "{stream:?}"
    );
    found
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\n{HOST}{fields}\r\n")
}

#[test]
fn unambiguous_requests_pass_and_so_do_those_after_them() {
    for one in [
        get(""),
        get("content-length: 0\r\n"),
        get("Content-Length:  3 \r\n") + "abc",
        get("content-length: 003\r\n") + "\r\n\0",
        get("TRANSFER-encoding:\tChunked\r\n") + "3\r\nabc\r\n0\r\n\r\n",
        get("transfer-encoding: chunked\r\n") + "1;a=\"b\"\r\n\n\r\n00\r\nx-end: 1\r\n\r\n",
        get("x-empty:\r\nx: \u{e9}\t~\r\n"),
        format!("\r\n\r\n{}", get("")),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "PRI * HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(),
    ] {
        assert_eq!(whole(&one), None, "{one:?}");
        assert_eq!(whole(&(one.clone() + &one)), None, "{one:?} twice");
    }
}

#[test]
fn ambiguous_requests_are_rejected() {
    let head = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n");
    let chunked = |body: &str| get("transfer-encoding: chunked\r\n") + body;
    for stream in [
        // Two lengths.
        get("content-length: 3\r\ntransfer-encoding: chunked\r\n"),
        get("transfer-encoding: chunked\r\ncontent-length: 3\r\n"),
        get("content-length: 3\r\ncontent-length: 4\r\n"),
        get("content-length: 3\r\ncontent-length: 3\r\n"),
        get("content-length: 3, 3\r\n"),
        // Numbers that some parsers accept.
        get("content-length: +5\r\n"),
        get("content-length: -5\r\n"),
        get("content-length: 0x5\r\n"),
        get("content-length: 5 5\r\n"),
        get("content-length:\r\n"),
        get("content-length: 18446744073709551616\r\n"),
        // Codings.
        get("transfer-encoding: gzip, chunked\r\n"),
        get("transfer-encoding: identity\r\n"),
        get("transfer-encoding: xchunked\r\n"),
        get("transfer-encoding: \"chunked\"\r\n"),
        get("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
        get("transfer-encoding:\r\n"),
        "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
        // Names and lines.
        get("content-length : 3\r\n"),
        get("transfer-encoding\t: chunked\r\n"),
        get(" x: 1\r\n"),
        get("x: 1\r\n folded\r\n"),
        get("x: 1\r\n\tfolded\r\n"),
        get(": 1\r\n"),
        get("x\r\n"),
        get("x y: 1\r\n"),
        get("x: 1\n"),
        get("x: a\rb\r\n"),
        get("x: a\0b\r\n"),
        get("x\0: a\r\n"),
        "GET / HTTP/1.1\nhost: h\n\n".to_owned(),
        "\nGET / HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(),
        // Hosts.
        head(""),
        head("host: a\r\nhost: b\r\n"),
        // Request lines.
        "GET  / HTTP/1.1\r\n".to_owned(),
        "GET / HTTP/1.1 \r\n".to_owned(),
        "GET / x HTTP/1.1\r\n".to_owned(),
        "GET\t/ HTTP/1.1\r\n".to_owned(),
        "GET HTTP/1.1\r\n".to_owned(),
        " GET / HTTP/1.1\r\n".to_owned(),
        "GET /\t HTTP/1.1\r\n".to_owned(),
        "GET / HTTP/1.2\r\n".to_owned(),
        "GET / HTTP/2.0\r\n".to_owned(),
        "GET / http/1.1\r\n".to_owned(),
        "GET /\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX\n".to_owned(),
        get("x: a\u{1}b\r\n"),
        get("x: a\u{7f}b\r\n"),
        get(&format!("{}: 1\r\n", "x".repeat(MAX_NAME_BYTES + 1))),
        // Invalid targets.
        "GET /\u{7f} HTTP/1.1\r\n".to_owned(),
        "GET /<> HTTP/1.1\r\n".to_owned(),
        get("content-length: 18446744073709551615\r\n"),
        // Chunks.
        chunked("\r\n"),
        chunked("+3\r\nabc\r\n"),
        chunked("0x3\r\nabc\r\n"),
        chunked("3 \r\nabc\r\n"),
        chunked(" 3\r\nabc\r\n"),
        chunked("3\nabc\r\n"),
        chunked("g\r\n"),
        chunked("-1\r\n"),
        chunked("00000000000000003\r\nabc\r\n"),
        chunked("3\r\nabcd\r\n"),
        chunked("3\r\nabc\n"),
        chunked("3\r\nab\r\n0\r\n\r\n"),
        chunked("3;a\nb\r\nabc\r\n"),
        chunked("3;a\rb\r\nabc\r\n"),
        chunked("3;a\0\r\nabc\r\n"),
        chunked(&format!("3;{}\r\nabc\r\n", "x".repeat(300))),
        chunked(&"3".repeat(300)),
        // Trailers.
        chunked("0\r\ncontent-length: 3\r\n\r\n"),
        chunked("0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        chunked("0\r\nhost: other\r\n\r\n"),
        chunked("0\r\n x: 1\r\n\r\n"),
        chunked("0\r\nx : 1\r\n\r\n"),
        chunked("0\r\n\n"),
    ] {
        assert!(whole(&stream).is_some(), "{stream:?}");
        assert!(whole(&(get("") + &stream)).is_some(), "after another: {stream:?}");
        assert!(twin::read(stream.as_bytes()).refused.is_some(), "{stream:?}");
    }
}

#[test]
fn other_protocols_are_not_checked() {
    assert_eq!(whole("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\n\r\nany\r"), None);
    let mut framing = Framing::new(100);
    framing
        .read((get("") + "GET / HTTP/1.1\r\nho").as_bytes())
        .unwrap();
    assert!(framing.unfinished_head() > 0);
    framing.on_upgrade();
    framing.read(b"\x82\0\0\r \n\n").unwrap();
    assert_eq!(framing.unfinished_head(), 0);
}

#[test]
fn a_head_is_bounded_in_bytes_fields_and_target() {
    let why = |max_head, stream: &str| {
        Framing::new(max_head)
            .read(stream.as_bytes())
            .err()
            .map(|refused| refused.why)
    };
    assert_eq!(
        why(100, &format!("GET /{}", "a".repeat(100))),
        Some(Why::TargetTooLong)
    );
    assert_eq!(why(100, &get(&format!("x: {}\r\n", "a".repeat(60)))), None);
    assert_eq!(
        why(100, &get(&format!("x: {}\r\n", "a".repeat(98)))),
        Some(Why::HeadTooLarge)
    );
    assert_eq!(why(100, &get(&"x: 1\r\n".repeat(20))), Some(Why::HeadTooLarge));
    assert_eq!(why(100, &"\r\n".repeat(51)), Some(Why::TargetTooLong));
    assert_eq!(why(100, &get("").repeat(9)), None, "each head by itself");
    assert_eq!(why(usize::MAX, &get(&"x: 1\r\n".repeat(MAX_FIELDS - 1))), None);
    assert_eq!(
        why(usize::MAX, &get(&"x: 1\r\n".repeat(MAX_FIELDS))),
        Some(Why::HeadTooLarge)
    );
    let target = |length| format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", "a".repeat(length - 1));
    assert_eq!(why(usize::MAX, &target(MAX_TARGET_BYTES)), None);
    assert_eq!(
        why(usize::MAX, &target(MAX_TARGET_BYTES + 1)),
        Some(Why::TargetTooLong)
    );
}

#[test]
fn an_unfinished_head_is_counted_until_it_ends() {
    let mut framing = Framing::new(usize::MAX);
    let mut after = |bytes: &[u8]| {
        framing.read(bytes).unwrap();
        framing.unfinished_head()
    };
    assert_eq!(after(b"GET / HTTP"), 10);
    assert_eq!(after(b"/1.1\r\nhost: h\r\ncontent-length: 3\r\n"), 44);
    assert_eq!(after(b"\r\nab"), 0);
    assert_eq!(after(b"c\r\nGET"), 5);
}

/// Generates streams of mostly valid requests, with some bytes displaced.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let odd = prop::sample::select(vec![
        "content-length: 2\r\n",
        "content-length: 002\r\n",
        "transfer-encoding: chunked\r\n",
        "x-a: 1\r\n",
        "x: a\tb\r\n",
        "connection: keep-alive\r\n",
        "te: trailers\r\n",
        "content-length:2\r\n",
        "Transfer-Encoding:chunked\r\n",
    ]);
    let fields = prop::collection::vec(odd, 0..3).prop_map(|fields| fields.concat());
    let body = prop::sample::select(vec![
        "",
        "ab",
        "2\r\nab\r\n0\r\n\r\n",
        "0\r\n\r\n",
        "1;x\r\na\r\n2\r\n\r\n\r\n0\r\nx-t: 1\r\n\r\n",
        "\r\n",
        "f\r\nGET / HTTP/1.1\r\n0\r\n\r\n",
    ]);
    let line = prop::sample::select(vec![
        "GET /a HTTP/1.1",
        "POST /b?c HTTP/1.1",
        "GET / HTTP/1.0",
        "OPTIONS * HTTP/1.1",
    ]);
    let host = prop::sample::select(vec![HOST, HOST, HOST, ""]);
    let one = (line, host, fields, body)
        .prop_map(|(line, host, fields, body)| format!("{line}\r\n{host}{fields}\r\n{body}").into_bytes());
    let put = (
        any::<Index>(),
        prop::sample::select(b"\r\n\0 \t:;3fg\xe9".to_vec()),
        0..3_u8,
    );
    (prop::collection::vec(one, 1..5), prop::collection::vec(put, 0..3)).prop_map(|(requests, puts)| {
        let mut stream = requests.concat();
        for (at, byte, how) in puts {
            let at = at.index(stream.len());
            match how {
                0 => stream.insert(at, byte),
                1 => stream[at] = byte,
                _ => drop(stream.remove(at)),
            }
            if stream.is_empty() {
                stream.push(b'G');
            }
        }
        stream
    })
}

/// Returns whether the guard and the twin agree. A rejection may lie within the line that the twin rejects, after a
/// beginning that was passed on: what hyper gets is not a valid line either.
fn agree(stream: &[u8], refused: Option<usize>) -> bool {
    match (refused, twin::read(stream).refused) {
        (None, None) => true,
        // The twin waits for the end of a line that cannot become valid.
        (Some(at), None) => memchr::memchr(b'\n', &stream[at..]).is_none(),
        (Some(at), Some(line)) => {
            let end = memchr::memchr(b'\n', &stream[line..]).map_or(stream.len(), |end| line + end);
            (line..=end).contains(&at)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn it_rejects_the_same_line_as_its_twin_however_the_bytes_are_cut(
        stream in streams(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.sort_unstable();
        prop_assert!(agree(&stream, refused(&stream, &[])));
        prop_assert!(agree(&stream, refused(&stream, &cuts)));
    }

    #[test]
    fn cuts_do_not_change_how_bytes_are_read(
        stream in prop::collection::vec(prop::sample::select(b"GET / HTTP/1.1\r\n\r\n:0\r\n".to_vec()), 1..60),
        cut in any::<Index>(),
    ) {
        let cut = cut.index(stream.len());
        prop_assert!(agree(&stream, refused(&stream, &[])));
        prop_assert!(agree(&stream, refused(&stream, &[cut])));
    }
}

/// Feeds hyper a stream that passes the guard. Returns the requests and the statuses of its responses.
async fn by_hyper(stream: Vec<u8>, cuts: &[usize]) -> (Vec<twin::Request>, Vec<u16>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (mut client, shared) = SharedSocket::pair().await;
    let service = {
        let (seen, progress) = (Arc::clone(&seen), Arc::clone(shared.progress()));
        service_fn(move |request: hyper::Request<Incoming>| {
            let (seen, open) = (Arc::clone(&seen), progress.request_began());
            async move {
                let _open = open;
                let (head, body) = request.into_parts();
                // A request with a truncated body does not count.
                let body = body.collect().await?.to_bytes().to_vec();
                let (method, target) = (head.method.to_string(), head.uri.to_string());
                seen.lock().push(twin::Request { method, target, body });
                Ok::<_, hyper::Error>(hyper::Response::new(Full::new(Bytes::new())))
            }
        })
    };
    let check = FramingCheck::new(1 << 16, ByteReservation::new(Arc::default(), usize::MAX));
    let io = ClientIo::new(Arc::clone(&shared), Some(check), Duration::from_secs(60));
    let mut builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
    // The end of the bytes does not mean that the client has disconnected.
    builder.http1().half_close(true);
    let mut said = Vec::new();
    let writing = async {
        let mut start = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            // The connection may have been closed in the meantime.
            let _ = client.write_all(&stream[start..end]).await;
            start = end;
            tokio::task::yield_now().await;
        }
        let _ = client.shutdown().await;
        client.read_to_end(&mut said).await.unwrap();
    };
    let (_, ()) = tokio::join!(
        async {
            let _ = builder.serve_connection(TokioIo::new(io), service).await;
            client_io::close(&shared.socket).await;
        },
        writing
    );
    let said = String::from_utf8(said).unwrap();
    let statuses = said
        .split("HTTP/1.")
        .skip(1)
        .map(|answer| answer[2..5].parse().unwrap())
        .collect();
    let seen = seen.lock().clone();
    (seen, statuses)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn hyper_reads_accepted_bytes_like_the_twin_and_never_answers_by_itself(
        stream in streams(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.sort_unstable();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reading = twin::read(&stream);
        let (seen, statuses) = runtime.block_on(by_hyper(stream, &cuts));
        // hyper stops after an HTTP/1.0 request. It never sees other requests, and never answers by itself.
        prop_assert_eq!(&seen[..], &reading.requests[..seen.len().min(reading.requests.len())]);
        prop_assert_eq!(statuses, vec![200; seen.len()]);
    }
}
