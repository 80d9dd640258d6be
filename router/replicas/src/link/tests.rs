//! A server that ends the client's task by an invalid message.

use std::collections::BTreeMap;
use std::time::Duration;

use config::Overrides;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender};

use super::*;

/// A NATS server that sends on each connection what the test gives it, and nothing until then.
struct Server {
    address: String,
    say: Sender<&'static str>,
    /// Receiver of one message per connection.
    connected: Receiver<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (say, mut says) = mpsc::channel(1);
        let (tell, connected) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tell.send(()).await.unwrap();
                let _ = converse(socket, &mut says).await;
            }
        });
        Self {
            address,
            say,
            connected,
        }
    }
}

/// Answers pings until the test has something to say, or the client closes the connection.
async fn converse(socket: TcpStream, says: &mut Receiver<&'static str>) -> io::Result<()> {
    let info =
        r#"{"server_id":"X","version":"2.9.10","host":"h","port":1,"headers":true,"max_payload":1048576}"#;
    let mut socket = BufReader::new(socket);
    socket.write_all(format!("INFO {info}\r\n").as_bytes()).await?;
    loop {
        // Payloads of messages are binary.
        let mut line = Vec::new();
        tokio::select! {
            read = socket.read_until(b'\n', &mut line) => match (read?, line.trim_ascii_end()) {
                (0, _) => return Ok(()),
                (_, b"PING") => socket.write_all(b"PONG\r\n").await?,
                _ => {}
            },
            Some(said) = says.recv() => socket.write_all(said.as_bytes()).await?,
        }
    }
}

fn replica(address: &str) -> (Arc<State>, Arc<Bus>) {
    let overrides = Overrides {
        workers: vec!["http://w:1".to_owned()],
        ..Overrides::default()
    };
    let environment = BTreeMap::from([("TAILROUTE_FLEET__NATS".to_owned(), format!("nats://{address}"))]);
    let state = State::new(config::load_file(None, environment, overrides).unwrap()).unwrap();
    let bus = Bus::new(state.config.fleet.as_ref().unwrap(), state.routing.metrics.bus());
    (state, Arc::new(bus))
}

/// Waits until the bus is up, or down.
async fn until(bus: &Bus, up: bool) {
    let changed = async {
        while bus.is_up() != up {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let changed = tokio::time::timeout(Duration::from_secs(30), changed).await;
    assert!(changed.is_ok(), "not {up} in time: {:?}", bus.why_down());
}

async fn next_connection(server: &mut Server) {
    let connected = tokio::time::timeout(Duration::from_secs(30), server.connected.recv()).await;
    assert_eq!(connected, Ok(Some(())));
}

/// Asserts that a message which ends the client's task is reported, and that a new client connects.
async fn reconnects_after(message: &'static str) {
    let mut server = Server::start().await;
    let (state, bus) = replica(&server.address);
    let running = tokio::spawn(run(Arc::clone(&state), Arc::clone(&bus)));
    next_connection(&mut server).await;
    until(&bus, true).await;
    assert!(bus.bucket().is_some());
    let mut events = state.operations.operator.events.listen();
    server.say.send(message).await.unwrap();
    let lost = async { while events.recv().await.unwrap().now != json!({ "connected": false }) {} };
    let lost = tokio::time::timeout(Duration::from_secs(30), lost).await;
    assert!(lost.is_ok(), "the lost connection is announced");
    next_connection(&mut server).await;
    until(&bus, true).await;
    assert!(bus.state(state.routing.clock.now()).connected && bus.bucket().is_some());
    assert!(!running.is_finished(), "the link goes on");
    running.abort();
}

#[tokio::test]
async fn an_error_without_text_leads_to_a_new_client() {
    reconnects_after("-ERR\r\n").await;
}

#[tokio::test]
async fn a_length_near_2_to_the_64_leads_to_a_new_client() {
    reconnects_after("MSG a 1 18446744073709551615\r\nxxxx").await;
}

#[tokio::test]
async fn headers_longer_than_their_message_lead_to_a_new_client() {
    reconnects_after("HMSG a 1 5 18446744073709551612\r\nxxxxxxxxxxxxx").await;
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_link_whose_client_has_ended_names_the_cause() {
    let (state, bus) = replica("127.0.0.1:1");
    bus.set_up(state.routing.clock.now(), true);
    let (tell, mut events) = mpsc::channel(1);
    drop(tell);
    watch(&state, &bus, &mut events).await;
    assert!(bus.is_up(), "only its end was noticed");
    trouble(&state, &bus, "the NATS client ended");
    disconnected(&state, &bus);
    let shown = bus.state(state.routing.clock.now());
    assert_eq!(
        (shown.connected, shown.error.as_deref()),
        (false, Some("the NATS client ended"))
    );
}
