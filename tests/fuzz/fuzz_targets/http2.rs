//! Any frames of HTTP/2 on the data port of a router that serves: nothing panics, the connection ends when its client has said
//! all that it says, and nothing of it is left in flight.
//!
//! Client and router share one thread, so that an input does the same each time.
#![no_main]

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::time::Duration;

use config::Overrides;
use libfuzzer_sys::fuzz_target;
use tailroute::serve::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Kinds of frames, one of which nobody knows.
const KINDS: u8 = 11;
/// A connection that is not over by then never is.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    static ROUTER: OnceCell<(Runtime, Server)> = const { OnceCell::new() };
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// A router whose only worker refuses connections.
fn start() -> (Runtime, Server) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some("127.0.0.1:0".to_owned()),
        workers: vec!["http://127.0.0.1:1".to_owned()],
        policy: None,
    };
    let mut config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
    config.health.interval = Duration::from_secs(3600);
    let server = runtime.block_on(Server::start(config)).unwrap();
    (runtime, server)
}

/// A field that is written out, of fewer than 127 bytes each.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(text.len() as u8);
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Header blocks of requests that the router knows, so that frames after them matter.
fn block(number: u8) -> Vec<u8> {
    let (method, path) = match number % 4 {
        0 => ("POST", "/v1/chat/completions"),
        1 => ("GET", "/v1/models"),
        2 => ("CONNECT", "/v1/realtime?model=sim"),
        _ => ("POST", "/v1/audio/transcriptions"),
    };
    [
        literal(":method", method),
        literal(":scheme", "http"),
        literal(":path", path),
        literal(":authority", "router.test"),
    ]
    .concat()
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let (kind, number) = (kind % KINDS, kind / KINDS);
    // Every other header block begins as a request does.
    let begun = kind == HEADERS && number.is_multiple_of(2);
    let payload = if begun {
        [&block(number / 2)[..], payload].concat()
    } else {
        payload.to_vec()
    };
    // What a flag says is in the payload is not at the head of a block that begins with a method.
    let flags = if begun { flags & !0x28 } else { flags };
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&u32::from(stream % 16).to_be_bytes());
    bytes.extend_from_slice(&payload);
    if kind == CONTINUATION && number == 0 {
        return bytes.repeat(3);
    }
    bytes
}

/// A connection from one of many addresses: ports of a single one would be used up by those that have just been closed.
async fn connect(server: &Server, number: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(([127, 0, 1, (number % 250) as u8 + 1], 0).into())
        .unwrap();
    socket.connect(server.address).await.unwrap()
}

async fn speak(server: &Server, stream: TcpStream, bytes: &[u8]) {
    let (mut reader, mut writer) = stream.into_split();
    let writing = async {
        // The router hangs up on what cannot be.
        let _ = writer.write_all(bytes).await;
        let _ = writer.shutdown().await;
    };
    let reading = async {
        let mut said = vec![0; 16 * 1024];
        while reader.read(&mut said).await.is_ok_and(|count| count > 0) {}
    };
    let both = async {
        tokio::join!(writing, reading);
        while server.parts().proxy.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, both).await.is_ok(),
        "the connection does not end"
    );
}

fuzz_target!(|input: (Vec<(u8, u8, u8, &[u8])>, &[u8])| {
    let (frames, rest) = input;
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(4, 0, 0, b""));
    for (kind, flags, stream, payload) in frames {
        bytes.extend(frame(kind, flags, stream, payload));
    }
    bytes.extend_from_slice(rest);
    ROUTER.with(|router| {
        let (runtime, server) = router.get_or_init(start);
        let number = NUMBER.replace(NUMBER.get() + 1);
        runtime.block_on(async { speak(server, connect(server, number).await, &bytes).await });
    });
});
