//! A publisher of cache events that violates ZMTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The bytes sent on each connection.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Bytes sent first.
    pub opening: Vec<u8>,
    /// Bytes sent repeatedly after that, until the connection ends; none if empty.
    pub then: Vec<u8>,
    /// Pause before each repetition.
    pub pause: Duration,
    /// Whether the connection is closed after the opening.
    pub hangs_up: bool,
}

/// A publisher that follows a script.
#[derive(Debug)]
pub struct Hostile {
    /// Endpoint, as `tcp://host:port`.
    pub endpoint: String,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU64,
    ended: AtomicU64,
    longest: AtomicU64,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Hostile {
    /// Starts a publisher.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(script: Script) -> Self {
        Self::on("127.0.0.1", script).await
    }

    /// Starts a publisher on this address.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn on(host: &str, script: Script) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen::default());
        let sees = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                sees.connections.fetch_add(1, Ordering::Relaxed);
                let (script, sees) = (script.clone(), Arc::clone(&sees));
                tokio::spawn(async move {
                    let sent = play(stream, &script).await;
                    sees.longest.fetch_max(sent, Ordering::Relaxed);
                    sees.ended.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self {
            endpoint,
            seen,
            accepting,
        }
    }

    /// Returns the number of connections accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.seen.ended.load(Ordering::Relaxed)
    }

    /// Returns the most bytes sent on a connection that has ended.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.seen.longest.load(Ordering::Relaxed)
    }
}

/// Runs the script on a connection. Returns the number of bytes sent in complete writes.
async fn play(mut stream: TcpStream, script: &Script) -> u64 {
    if stream.write_all(&script.opening).await.is_err() {
        return 0;
    }
    let mut sent = script.opening.len() as u64;
    if script.hangs_up {
        return sent;
    }
    let mut ignored = [0; 1024];
    loop {
        tokio::select! {
            read = stream.read(&mut ignored) => if matches!(read, Ok(0) | Err(_)) { break },
            () = tokio::time::sleep(script.pause), if !script.then.is_empty() => {
                if stream.write_all(&script.then).await.is_err() {
                    break;
                }
                sent += script.then.len() as u64;
            }
        }
    }
    sent
}

/// Returns a ZMTP 3.0 greeting and the READY command of this socket type.
#[must_use]
pub fn handshake(socket_type: &str) -> Vec<u8> {
    let mut bytes = greeting();
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(socket_type.len() as u8);
    ready.extend(socket_type.as_bytes());
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// Returns a ZMTP 3.0 greeting.
#[must_use]
pub fn greeting() -> Vec<u8> {
    let mut bytes = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
    bytes.resize(64, 0);
    bytes
}

/// Returns the head of a long frame with these flags in addition to LONG.
#[must_use]
pub fn long_frame(flags: u8, length: u64) -> Vec<u8> {
    let mut head = vec![flags | 2];
    head.extend(length.to_be_bytes());
    head
}
