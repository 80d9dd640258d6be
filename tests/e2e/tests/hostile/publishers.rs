//! Hostile publishers of cache events: ZeroMQ peers (ZMTP 3.0) that declare, send and withhold data at will.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Interval between megabytes of an endless message.
const EVERY: Duration = Duration::from_millis(8);
/// Interval between bytes of an endless greeting.
const SLOWLY: Duration = Duration::from_millis(200);
/// Time for a subscription to arrive.
const SUBSCRIBED: Duration = Duration::from_millis(300);
/// Time that a publisher waits after a false declaration.
const WAITS: Duration = Duration::from_secs(2);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// A frame that declares 2^62 bytes.
    HugeFrame,
    /// A command that declares 2^62 bytes.
    HugeCommand,
    /// Batches are missing, and the replay of them declares 2^62 bytes.
    HugeReplay,
    /// One frame of 20 GiB, sent.
    EndlessFrame,
    /// One message of endless frames.
    EndlessParts,
    EndlessGreeting,
    /// Random bytes.
    Garbage,
}

/// A publisher. Dropping it closes its ports.
#[derive(Debug)]
pub(crate) struct Publisher {
    events: SocketAddr,
    /// The replay endpoint, if the behaviour shows there.
    replay: Option<SocketAddr>,
    accepting: [JoinHandle<()>; 2],
}

impl Drop for Publisher {
    fn drop(&mut self) {
        for accepting in &self.accepting {
            accepting.abort();
        }
    }
}

impl Publisher {
    pub(crate) async fn start(habit: Habit) -> Self {
        let (events, publishing) = listen(habit, "PUB").await;
        let (replay, replaying) = listen(Habit::HugeFrame, "ROUTER").await;
        Self {
            events,
            replay: (habit == Habit::HugeReplay).then_some(replay),
            accepting: [publishing, replaying],
        }
    }

    /// Returns the configuration lines of a worker with this publisher.
    pub(crate) fn lines(&self) -> String {
        let replay = self
            .replay
            .map(|replay| format!("kv_events_replay = \"tcp://{replay}\"\n"));
        format!(
            "kv_events = \"tcp://{}\"\n{}",
            self.events,
            replay.unwrap_or_default()
        )
    }
}

async fn listen(habit: Habit, socket: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // The router may disconnect at any time.
            tokio::spawn(async move {
                let _ = publish(stream, habit, socket).await;
            });
        }
    });
    (address, accepting)
}

/// Returns the first 64 bytes of a peer: signature, version, no encryption.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(payload.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => vec![flags | LONG],
    };
    if bytes.len() == 1 {
        bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the head of a frame of this length.
fn claim(flags: u8, bytes: u64) -> Vec<u8> {
    let mut head = vec![flags | LONG];
    head.extend_from_slice(&bytes.to_be_bytes());
    head
}

fn ready(socket: &str) -> Vec<u8> {
    let length = u32::try_from(socket.len()).unwrap().to_be_bytes();
    let command = [&b"\x05READY\x0bSocket-Type"[..], &length, socket.as_bytes()];
    frame(COMMAND, &command.concat())
}

/// Returns a batch without events.
fn batch(number: u64) -> Vec<u8> {
    let mut empty = vec![0x93, 0xcb];
    empty.extend_from_slice(&1.0_f64.to_be_bytes());
    empty.extend_from_slice(&[0x90, 0x00]);
    [
        frame(MORE, b""),
        frame(MORE, &number.to_be_bytes()),
        frame(0, &empty),
    ]
    .concat()
}

async fn publish(mut stream: TcpStream, habit: Habit, socket: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if habit == Habit::EndlessGreeting {
        stream.write_all(&greeting()[..10]).await?;
        loop {
            tokio::time::sleep(SLOWLY).await;
            stream.write_all(&[3]).await?;
        }
    }
    stream.write_all(&greeting()).await?;
    stream.read_exact(&mut [0; 64]).await?;
    if habit == Habit::HugeCommand {
        stream.write_all(&claim(COMMAND, 1 << 62)).await?;
        tokio::time::sleep(WAITS).await;
        return Ok(());
    }
    stream.write_all(&ready(socket)).await?;
    tokio::time::sleep(SUBSCRIBED).await;
    match habit {
        Habit::HugeFrame => stream.write_all(&claim(0, 1 << 62)).await?,
        Habit::HugeReplay => stream.write_all(&[batch(0), batch(10)].concat()).await?,
        Habit::EndlessFrame => {
            stream.write_all(&claim(0, 20 << 30)).await?;
            endless(&mut stream, &vec![0; 1 << 20]).await?;
        }
        Habit::EndlessParts => endless(&mut stream, &frame(MORE, &[b'x'; 200]).repeat(5_000)).await?,
        Habit::Garbage => {
            let bytes = (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8);
            stream.write_all(&bytes.collect::<Vec<u8>>()).await?;
        }
        Habit::HugeCommand | Habit::EndlessGreeting => {}
    }
    tokio::time::sleep(WAITS).await;
    Ok(())
}

async fn endless(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(piece).await?;
        tokio::time::sleep(EVERY).await;
    }
}
