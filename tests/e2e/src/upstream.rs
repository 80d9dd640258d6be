//! A scripted worker that sends bytes only on the test's command.
//!
//! Probes are answered without the test. Any other request is passed to the test as an [`Exchange`], which owns the
//! connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::wait::within;

/// A scripted worker. Dropping it closes its port.
#[derive(Debug)]
pub struct Upstream {
    /// Listen address.
    pub address: SocketAddr,
    exchanges: mpsc::Receiver<Exchange>,
    well: Arc<AtomicBool>,
    early: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

/// Paths and the JSON answers to them.
type Says = Arc<[(&'static str, &'static str)]>;

/// A received request with its connection.
#[derive(Debug)]
pub struct Exchange {
    /// Request line and header fields.
    pub head: String,
    /// Body, as far as it was received.
    pub body: Vec<u8>,
    stream: TcpStream,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Upstream {
    /// Starts a worker on a free port.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start() -> Self {
        Self::saying(&[]).await
    }

    /// Starts a worker that answers these paths with this JSON. A path with an empty answer is passed to the test
    /// like any other request.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn saying(says: &[(&'static str, &'static str)]) -> Self {
        let says: Says = says.to_vec().into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, exchanges) = mpsc::channel(64);
        let well = Arc::new(AtomicBool::new(true));
        let probed = Arc::clone(&well);
        let early = Arc::new(AtomicBool::new(false));
        let hands_over = Arc::clone(&early);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(
                    stream,
                    sender.clone(),
                    (Arc::clone(&probed), Arc::clone(&hands_over)),
                    Arc::clone(&says),
                ));
            }
        });
        Self {
            address,
            exchanges,
            well,
            early,
            accepting,
        }
    }

    /// Sets whether probes succeed.
    pub fn set_well(&self, well: bool) {
        self.well.store(well, Ordering::Relaxed);
    }

    /// Passes requests to the test as soon as the head is complete, with the part of the body received so far.
    pub fn hands_over_early(&self) {
        self.early.store(true, Ordering::Relaxed);
    }

    /// Waits for the next request, and returns it.
    ///
    /// # Panics
    /// If none comes.
    pub async fn next(&mut self) -> Exchange {
        within(self.exchanges.recv()).await.expect("a request")
    }

    /// Returns whether another request is waiting.
    pub fn has_more(&mut self) -> bool {
        self.exchanges.try_recv().is_ok()
    }
}

/// Answers probes until another request comes, which is passed to the test with its connection.
async fn serve(
    mut stream: TcpStream,
    exchanges: mpsc::Sender<Exchange>,
    (well, early): (Arc<AtomicBool>, Arc<AtomicBool>),
    says: Says,
) {
    stream.set_nodelay(true).unwrap();
    while let Some((head, body)) = read_request(&mut stream, &early).await {
        let path = head.split(' ').nth(1);
        let said = says.iter().find(|(known, _)| Some(*known) == path);
        let answer = match path {
            _ if let Some((_, document)) = said.filter(|(_, document)| !document.is_empty()) => {
                json("200 OK", document, "")
            }
            Some("/health") if !well.load(Ordering::Relaxed) => json("503 Service Unavailable", "{}", ""),
            Some("/health") => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Some("/v1/models") => json("200 OK", r#"{"object":"list","data":[{"id":"sim"}]}"#, ""),
            Some(
                "/v1/tailroute" | "/kv_event_sources" | "/server_info" | "/metrics" | "/tokenize"
                | "/is_sleeping",
            ) if said.is_none() => json("404 Not Found", "{}", ""),
            _ => {
                // The test may have ended.
                let _ = exchanges.send(Exchange { head, body, stream }).await;
                return;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn json(status: &str, body: &str, fields: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{fields}\r\n{body}",
        body.len()
    )
}

async fn read_request(stream: &mut TcpStream, early: &AtomicBool) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8(bytes).ok()?;
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length:")
                .map(str::trim)
                .map(str::to_owned)
        })
        .map_or(0, |length| length.parse().unwrap());
    while body.len() < length && !early.load(Ordering::Relaxed) {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, body))
}

impl Exchange {
    /// Returns a header field of the request.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// Reads until the body has this length.
    ///
    /// # Panics
    /// If it ends before.
    pub async fn read_to(&mut self, length: usize) {
        while self.body.len() < length {
            let read = within(self.stream.read_buf(&mut self.body)).await.unwrap();
            assert!(read > 0, "the body ended after {} bytes", self.body.len());
        }
    }

    /// Reads until the router disconnects.
    pub async fn read_to_end(&mut self) {
        // A reset ends the read too.
        let _ = within(self.stream.read_to_end(&mut self.body)).await;
    }

    /// Returns the connection.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends bytes.
    ///
    /// # Panics
    /// If the router does not accept them.
    pub async fn send(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends the head of an event stream.
    pub async fn begin_events(&mut self) {
        self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
            .await;
    }

    /// Sends a chunk of a chunked body.
    pub async fn chunk(&mut self, data: &[u8]) {
        let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
        bytes.extend_from_slice(data);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes).await;
    }

    /// Ends a chunked body properly.
    pub async fn end(mut self) {
        self.send(b"0\r\n\r\n").await;
    }

    /// Sends a complete JSON response.
    pub async fn answer(mut self, status: &str, body: &str) {
        self.send(json(status, body, "connection: close\r\n").as_bytes())
            .await;
    }

    /// Resets the connection.
    ///
    /// # Panics
    /// If that fails.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Waits until the router disconnects.
    pub async fn hung_up(&mut self) {
        let mut nothing = [0; 64];
        loop {
            match within(self.stream.read(&mut nothing)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
