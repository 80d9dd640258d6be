//! Requests with ambiguous ends: they are rejected, and nothing after them is read.

use serde_json::json;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;

fn body(text: &str) -> String {
    ask(text, json!({ "max_tokens": 1 })).to_string()
}

fn post(fields: &[&str], body: &str) -> Vec<u8> {
    request(&format!("POST {CHAT}"), fields, body)
}

fn good(text: &str) -> Vec<u8> {
    let body = body(text);
    post(&[&format!("content-length: {}", body.len())], &body)
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

/// Rejected heads: the bytes, without the smuggled request.
fn heads() -> Vec<(&'static str, Vec<u8>)> {
    let body = body("outer");
    let length = format!("content-length: {}", body.len());
    let te = "transfer-encoding: chunked";
    let line = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n");
    let raw = |text: String| text.into_bytes();
    vec![
        ("a length before chunks", post(&[&length, te], &chunked(&body))),
        ("a length after chunks", post(&[te, &length], &chunked(&body))),
        (
            "a length of nothing with chunks",
            post(&["content-length: 0", te], &chunked(&body)),
        ),
        ("two lengths", post(&[&length, "content-length: 0"], &body)),
        ("one length twice", post(&[&length, &length], &body)),
        (
            "a list of lengths",
            post(&[&format!("{length}, {}", body.len())], &body),
        ),
        (
            "a length with a sign",
            post(&[&format!("content-length: +{}", body.len())], &body),
        ),
        ("a negative length", post(&["content-length: -1"], &body)),
        ("a hexadecimal length", post(&["content-length: 0x10"], &body)),
        ("an empty length", post(&["content-length:"], &body)),
        (
            "a length beyond all",
            post(&["content-length: 99999999999999999999"], &body),
        ),
        (
            "white space before the colon",
            post(&[&length.replace(':', " :")], &body),
        ),
        (
            "a tab before the colon",
            post(&["transfer-encoding\t: chunked"], &chunked(&body)),
        ),
        ("another coding", post(&["transfer-encoding: gzip"], &body)),
        (
            "another coding before chunked",
            post(&["transfer-encoding: gzip, chunked"], &chunked(&body)),
        ),
        (
            "a coding that only looks like chunked",
            post(&["transfer-encoding: xchunked"], &body),
        ),
        (
            "chunked in quotes",
            post(&["transfer-encoding: \"chunked\""], &chunked(&body)),
        ),
        ("chunked twice", post(&[te, te], &chunked(&body))),
        (
            "chunked, then something else",
            post(&[te, "transfer-encoding: x"], &chunked(&body)),
        ),
        (
            "chunked behind a vertical tab",
            post(&["transfer-encoding: \x0bchunked"], &chunked(&body)),
        ),
        (
            "chunks in HTTP/1.0",
            raw(format!("POST {CHAT} HTTP/1.0\r\n{te}\r\n\r\n{}", chunked(&body))),
        ),
        (
            "a folded field",
            raw(format!("{line}x: 1\r\n {length}\r\n\r\n{body}")),
        ),
        (
            "a field folded at once",
            raw(format!("{line} {length}\r\n\r\n{body}")),
        ),
        ("a bare LF", raw(format!("{line}x: 1\n{length}\r\n\r\n{body}"))),
        ("a bare CR", raw(format!("{line}x: 1\r{length}\r\n\r\n{body}"))),
        ("an end of bare LFs", raw(format!("{line}{length}\n\n{body}"))),
        (
            "a NUL in a value",
            raw(format!("{line}x: 1\0{length}\r\n\r\n{body}")),
        ),
        (
            "a NUL in a name",
            raw(format!("{line}x\0: 1\r\n{length}\r\n\r\n{body}")),
        ),
        (
            "a name of no length",
            raw(format!("{line}: 1\r\n{length}\r\n\r\n{body}")),
        ),
        (
            "a space in a name",
            raw(format!("{line}x y: 1\r\n{length}\r\n\r\n{body}")),
        ),
        (
            "no host",
            raw(format!("POST {CHAT} HTTP/1.1\r\n{length}\r\n\r\n{body}")),
        ),
        ("two hosts", post(&["host: other", &length], &body)),
        (
            "two spaces in the request line",
            raw(format!("POST  {CHAT} HTTP/1.1\r\nhost: h\r\n\r\n")),
        ),
        (
            "a target of two parts",
            raw(format!("POST {CHAT} x HTTP/1.1\r\nhost: h\r\n\r\n")),
        ),
        (
            "a line that ends twice",
            raw(format!("POST {CHAT} HTTP/1.1\r\r\nhost: h\r\n\r\n")),
        ),
        (
            "HTTP/2 by name alone",
            raw(format!("POST {CHAT} HTTP/2.0\r\nhost: h\r\n\r\n")),
        ),
    ]
}

fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let (body, te) = (body("outer"), "transfer-encoding: chunked");
    let size = format!("{:x}", body.len());
    let with = |text: String| post(&[te], &text);
    vec![
        (
            "a size with a sign",
            with(format!("+{size}\r\n{body}\r\n0\r\n\r\n")),
        ),
        ("a size with 0x", with(format!("0x{size}\r\n{body}\r\n0\r\n\r\n"))),
        (
            "a size with a space behind",
            with(format!("{size} \r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "a size with a space before",
            with(format!(" {size}\r\n{body}\r\n0\r\n\r\n")),
        ),
        ("a size of no digits", with(format!("\r\n{body}\r\n0\r\n\r\n"))),
        (
            "a size of other letters",
            with(format!("xyz\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "a size beyond all",
            with(format!("1{size:0>16}\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "a size that ends with a bare LF",
            with(format!("{size}\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "a size that is too small",
            with(format!("1\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "a chunk that ends with a bare LF",
            with(format!("{size}\r\n{body}\n0\r\n\r\n")),
        ),
        (
            "an extension with a bare LF",
            with(format!("{size};a\nb\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "an extension with a bare CR",
            with(format!("{size};a\rb\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "an extension with a NUL",
            with(format!("{size};a\0b\r\n{body}\r\n0\r\n\r\n")),
        ),
        (
            "an extension without end",
            with(format!("{size};{}\r\n{body}\r\n0\r\n\r\n", "x".repeat(1000))),
        ),
        (
            "a last chunk with a bare LF",
            with(format!("{size}\r\n{body}\r\n0\n\r\n")),
        ),
        (
            "a trailer of length",
            with(format!("{size}\r\n{body}\r\n0\r\ncontent-length: 5\r\n\r\n")),
        ),
        (
            "a trailer of coding",
            with(format!("{size}\r\n{body}\r\n0\r\ntransfer-encoding: x\r\n\r\n")),
        ),
        (
            "a trailer with a space",
            with(format!("{size}\r\n{body}\r\n0\r\nx : 1\r\n\r\n")),
        ),
        (
            "a folded trailer",
            with(format!("{size}\r\n{body}\r\n0\r\nx: 1\r\n y\r\n\r\n")),
        ),
    ]
}

/// Returns the bodies that the engine received.
fn arrived(fleet: &Fleet) -> Vec<String> {
    let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    fleet.engines[0]
        .captured()
        .iter()
        .map(|request| text(&request.body))
        .collect()
}

#[tokio::test]
async fn ambiguous_requests_are_rejected_and_nothing_after_them_is_read() {
    let fleet = Fleet::of(1).await;
    let all = heads()
        .into_iter()
        .map(|(what, bytes)| (what, bytes, "malformed_http"));
    let all = all.chain(
        bodies()
            .into_iter()
            .map(|(what, bytes)| (what, bytes, "body_cut_short")),
    );
    let mut all_wrong = Vec::new();
    for (what, bytes, code) in all {
        for before in [&[][..], &good("before")] {
            let mut wire = Wire::connect(fleet.address()).await;
            wire.write(&[before, &bytes, &good("smuggled")].concat()).await;
            if !before.is_empty() {
                assert_eq!(wire.answer().await.expect(what).status, 200, "before {what}");
            }
            match wire.answer().await {
                Some(answer) if answer.status == 400 && answer.error_code() == code => {}
                other => all_wrong.push(format!("{what}: {other:?}")),
            }
            if !wire.closes().await {
                all_wrong.push(format!("{what}: the connection goes on"));
            }
        }
    }
    assert!(all_wrong.is_empty(), "{all_wrong:#?}");
    let bad = |body: &&String| body.contains("outer") || body.contains("smuggled");
    assert_eq!(arrived(&fleet).iter().find(bad), None);
    fleet.at_rest().await;
}

#[tokio::test]
async fn cuts_do_not_change_the_framing() {
    let fleet = Fleet::of(1).await;
    let te = "transfer-encoding: chunked";
    let refused = post(&["content-length: 4", te], "0\r\n\r\n");
    let taken = [good("one"), post(&[te], &chunked(&body("two")))].concat();
    for step in [1, 2, 3, 7, 23] {
        let mut wire = Wire::connect(fleet.address()).await;
        for piece in taken.chunks(step) {
            wire.write(piece).await;
            // Yield, so that the pieces are read separately.
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            assert_eq!(
                wire.answer().await.expect("an answer").status,
                200,
                "steps of {step}"
            );
        }
        for piece in refused.chunks(step) {
            wire.write(piece).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(
            wire.answer().await.expect("an answer").status,
            400,
            "steps of {step}"
        );
        assert!(wire.closes().await);
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn unusual_but_unambiguous_requests_are_accepted() {
    let fleet = Fleet::of(1).await;
    let (text, te) = (body("hello"), "Transfer-Encoding: Chunked");
    let length = format!("CONTENT-LENGTH:\t{}  ", text.len());
    let (first, second) = text.split_at(5);
    for (what, bytes) in [
        (
            "an empty line before it",
            [b"\r\n\r\n".to_vec(), good("hello")].concat(),
        ),
        ("white space around a length", post(&[&length], &text)),
        (
            "zeros before a length",
            post(&[&format!("content-length: 000{}", text.len())], &text),
        ),
        (
            "chunks with extensions",
            post(
                &[te],
                &format!(
                    "5;a;b=\"c\"\r\n{first}\r\n000{:X}\r\n{second}\r\n0;last\r\nx-end: 1\r\n\r\n",
                    second.len()
                ),
            ),
        ),
        (
            "a target with host",
            request(
                &format!("POST http://another.test{CHAT}"),
                &[&format!("content-length: {}", text.len())],
                &text,
            ),
        ),
        (
            "no host in HTTP/1.0",
            format!(
                "POST {CHAT} HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
            .into_bytes(),
        ),
    ] {
        let mut wire = Wire::connect(fleet.address()).await;
        for _ in 0..2 {
            wire.write(&bytes).await;
            assert_eq!(wire.answer().await.expect(what).status, 200, "{what}");
            let captured = fleet.engines[0].captured();
            let turn = captured.iter().rfind(|request| request.uri.path() == CHAT);
            assert_eq!(turn.unwrap().body, text, "{what}");
        }
    }
    fleet.at_rest().await;
}
