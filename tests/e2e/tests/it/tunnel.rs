//! WebSockets through the router, with real ones at both ends.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tailroute::serve::Server;
use tailroute_e2e::fleet::{at_rest, metrics, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::{until, within};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

type Socket = WebSocketStream<TcpStream>;

const PATH: &str = "/v1/realtime?model=sim&x=%20y";

async fn connect(address: SocketAddr) -> Result<Socket, Error> {
    let stream = TcpStream::connect(address).await.unwrap();
    let opened = client_async(format!("ws://router.test{PATH}"), stream).await;
    opened.map(|(socket, _)| socket)
}

async fn accept(mut exchange: Exchange) -> Socket {
    assert!(
        exchange.head.starts_with(&format!("GET {PATH} HTTP/1.1\r\n")),
        "{}",
        exchange.head
    );
    assert_eq!(exchange.header("upgrade"), Some("websocket"));
    assert_eq!(exchange.header("connection"), Some("upgrade"));
    let key = derive_accept_key(exchange.header("sec-websocket-key").unwrap().as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {key}\r\n\r\n"
    );
    exchange.send(head.as_bytes()).await;
    WebSocketStream::from_raw_socket(exchange.into_stream(), Role::Server, None).await
}

struct Stage {
    upstream: Upstream,
    router: Server,
}

impl Stage {
    async fn set(tweak: impl FnOnce(&mut config::Config)) -> Self {
        let upstream = Upstream::start().await;
        let router = route(&[upstream.address], tweak).await;
        Self { upstream, router }
    }

    /// Opens a tunnel. Returns both of its ends.
    async fn open(&mut self) -> (Socket, Socket) {
        let address = self.router.address;
        let client = tokio::spawn(async move { connect(address).await.unwrap() });
        let worker = accept(self.upstream.next().await).await;
        (within(client).await.unwrap(), worker)
    }
}

fn text(message: Option<Result<Message, Error>>) -> String {
    message
        .expect("a message")
        .unwrap()
        .into_text()
        .unwrap()
        .to_string()
}

#[tokio::test]
async fn messages_pass_both_ways_and_the_tunnel_counts_while_it_is_open() {
    let mut stage = Stage::set(|_| {}).await;
    let (mut client, mut worker) = stage.open().await;
    assert_eq!(stage.router.parts().proxy.in_flight(), 1);
    let workers = stage.router.parts().state.routing.fleet.workers();
    assert_eq!(workers[0].with_load(|load| load.in_flight), 1);
    let long = "é".repeat(100_000);
    for round in 0..3 {
        client.send(Message::text(format!("up {round}"))).await.unwrap();
        assert_eq!(text(within(worker.next()).await), format!("up {round}"));
        worker.send(Message::text(long.clone())).await.unwrap();
        assert!(text(within(client.next()).await) == long);
        worker.send(Message::binary(vec![0, 13, 10, 255])).await.unwrap();
        assert_eq!(
            within(client.next()).await.unwrap().unwrap().into_data(),
            &[0, 13, 10, 255][..]
        );
    }
    let goodbye = CloseFrame {
        code: CloseCode::Normal,
        reason: "done".into(),
    };
    client.close(Some(goodbye)).await.unwrap();
    assert!(
        matches!(within(worker.next()).await, Some(Ok(Message::Close(Some(frame)))) if frame.reason == "done")
    );
    assert!(
        within(worker.next()).await.is_none(),
        "its answer to the close has gone out"
    );
    // The worker closes first (RFC 6455, section 7.1.1), and the client sees it.
    drop(worker);
    while within(client.next()).await.is_some_and(|message| message.is_ok()) {}
    drop(client);
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    assert_eq!(
        page.sum(
            "tailroute_requests_total",
            &[("endpoint", "realtime"), ("outcome", "ok")]
        ),
        1.0
    );
}

#[tokio::test]
async fn closing_one_side_of_a_tunnel_closes_the_other() {
    let mut stage = Stage::set(|_| {}).await;
    let (client, mut worker) = stage.open().await;
    drop(client);
    assert!(
        !matches!(within(worker.next()).await, Some(Ok(_))),
        "the worker sees it go"
    );
    drop(worker);
    at_rest(&stage.router).await;
    let (mut client, worker) = stage.open().await;
    drop(worker);
    assert!(
        !matches!(within(client.next()).await, Some(Ok(_))),
        "the client sees it go"
    );
    drop(client);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let mut stage = Stage::set(|config| config.http.tunnel_idle_timeout = Duration::from_millis(50)).await;
    let (mut client, mut worker) = stage.open().await;
    goes_away(&mut client).await;
    goes_away(&mut worker).await;
    at_rest(&stage.router).await;
}

/// Checks that the peer closes as RFC 6455 requires, and sends nothing after.
async fn goes_away(socket: &mut Socket) {
    let said = within(socket.next()).await;
    assert!(
        matches!(&said, Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Away),
        "{said:?}"
    );
    assert!(!matches!(within(socket.next()).await, Some(Ok(_))));
}

#[tokio::test]
async fn a_drain_waits_for_tunnels_and_cuts_them_at_its_limit() {
    let mut stage = Stage::set(|config| config.limits.drain_timeout = Duration::from_secs(5)).await;
    let (mut client, mut worker) = stage.open().await;
    let parts = std::sync::Arc::clone(stage.router.parts());
    let draining = tokio::spawn(stage.router.drain());
    until("draining", || parts.state.operations.is_draining()).await;
    client.send(Message::text("still here")).await.unwrap();
    assert_eq!(text(within(worker.next()).await), "still here");
    goes_away(&mut client).await;
    goes_away(&mut worker).await;
    assert_eq!(within(draining).await.unwrap(), 1, "it was cut");
}

#[tokio::test]
async fn a_rejected_upgrade_is_a_regular_response() {
    let mut stage = Stage::set(|_| {}).await;
    let address = stage.router.address;
    let client = tokio::spawn(async move { connect(address).await });
    stage
        .upstream
        .next()
        .await
        .answer("403 Forbidden", r#"{"error":"no"}"#)
        .await;
    let Err(Error::Http(refused)) = within(client).await.unwrap() else {
        panic!("refused");
    };
    assert_eq!(refused.status(), 403);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn bytes_after_a_rejected_upgrade_are_read_as_requests() {
    let mut stage = Stage::set(|_| {}).await;
    let fields = [
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-key: x",
        "sec-websocket-version: 13",
    ];
    let mut wire = Wire::connect(stage.router.address).await;
    wire.write(&request(&format!("GET {PATH}"), &fields, "")).await;
    let mut exchange = stage.upstream.next().await;
    exchange
        .send(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .await;
    assert_eq!(wire.answer().await.unwrap().status, 426);
    wire.write(b"\x81\x02hi\r\n\r\n").await;
    assert_eq!(wire.answer().await.unwrap().status, 400);
    assert!(wire.closes().await);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn an_upgrade_to_another_protocol_is_a_regular_request() {
    let mut stage = Stage::set(|_| {}).await;
    let mut wire = Wire::connect(stage.router.address).await;
    wire.write(&request(
        "GET /v1/files",
        &["upgrade: h2c", "connection: upgrade"],
        "",
    ))
    .await;
    let exchange = stage.upstream.next().await;
    assert_eq!(
        (exchange.header("upgrade"), exchange.header("connection")),
        (None, None)
    );
    exchange.answer("200 OK", "{}").await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_tunnel_over_http2_reaches_a_worker_that_speaks_http1() {
    use http_body_util::Empty;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let mut stage = Stage::set(|_| {}).await;
    let stream = TcpStream::connect(stage.router.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake::<_, Empty<bytes::Bytes>>(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut asked = http::Request::connect(format!("http://router.test{PATH}"))
        .body(Empty::new())
        .unwrap();
    asked
        .extensions_mut()
        .insert(hyper::ext::Protocol::from_static("websocket"));
    // After a first response, the client has the server's settings and knows that it may open a tunnel.
    let models = http::Request::get("http://router.test/v1/models")
        .body(Empty::new())
        .unwrap();
    assert_eq!(within(sender.send_request(models)).await.unwrap().status(), 200);
    let answer = tokio::spawn(async move {
        let answer = sender.send_request(asked).await;
        (answer, sender)
    });
    let mut worker = accept(stage.upstream.next().await).await;
    let (answer, sender) = within(answer).await.unwrap();
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200);
    let upgraded = within(hyper::upgrade::on(answer)).await.unwrap();
    let mut client = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    client.send(Message::text("over streams")).await.unwrap();
    assert_eq!(text(within(worker.next()).await), "over streams");
    worker.send(Message::text("and back")).await.unwrap();
    assert_eq!(text(within(client.next()).await), "and back");
    worker.get_mut().shutdown().await.unwrap();
    assert!(!matches!(within(client.next()).await, Some(Ok(_))));
    drop((client, worker, sender));
    at_rest(&stage.router).await;
    connection.abort();
}
