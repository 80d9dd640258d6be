//! Reads the metrics as Prometheus does, and starts the capture.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Reads the metrics periodically, until dropped.
#[derive(Debug)]
pub(super) struct Reader {
    admin: SocketAddr,
    reading: JoinHandle<()>,
}

impl Reader {
    /// Starts reading from the admin port at `admin`.
    pub(super) fn start(admin: SocketAddr, every: Duration) -> Self {
        let reading = tokio::spawn(async move {
            let mut tick = tokio::time::interval(every);
            loop {
                tick.tick().await;
                // A dead router is detected by the measurement.
                let _ = read(admin).await;
            }
        });
        Self { admin, reading }
    }

    /// Reads the metrics once.
    pub(super) async fn read(&self) -> anyhow::Result<()> {
        read(self.admin).await
    }
}

async fn read(admin: SocketAddr) -> anyhow::Result<()> {
    let accept = "accept: application/openmetrics-text;version=1.0.0\r\n";
    ask(admin, "GET /metrics", accept, "").await
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Starts the capture of turns in memory.
pub(super) async fn start_capture(admin: SocketAddr) -> anyhow::Result<()> {
    let kind = "content-type: application/json\r\n";
    let reason = "{\"reason\":\"what it costs\"}";
    ask(admin, "POST /admin/v1/capture/start", kind, reason).await
}

/// Sends one request on its own connection and reads the response.
async fn ask(admin: SocketAddr, what: &str, fields: &str, body: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(admin).await?;
    let head = format!(
        "{what} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n{fields}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let status = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let status = String::from_utf8_lossy(status);
    anyhow::ensure!(status.contains(" 200 "), "{what} was answered {status}");
    Ok(())
}
