//! A worker that becomes unreachable like a dead host: connections are neither accepted nor refused.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time after which a pending connection on loopback counts as not accepted.
const TAKEN_WITHIN: Duration = Duration::from_millis(300);

/// A worker that answers probes until it becomes unreachable.
#[derive(Debug)]
pub struct Silent {
    /// Listen address.
    pub address: SocketAddr,
    speaks: watch::Sender<bool>,
    accepting: JoinHandle<TcpListener>,
    /// Connections that fill the listen backlog.
    waiting: Vec<TcpStream>,
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Silent {
    /// Starts a healthy worker.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let (speaks, mut speaking) = watch::channel(true);
        let accepting = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = speaking.wait_for(|speaks| !speaks) => break,
                    Ok((stream, _)) = listener.accept() => drop(tokio::spawn(answer(stream))),
                }
            }
            // The listener is kept, so that connections are not refused.
            std::future::pending::<()>().await;
            listener
        });
        Self {
            address,
            speaks,
            accepting,
            waiting: Vec::new(),
        }
    }

    /// Makes the worker unreachable.
    pub async fn fall_silent(&mut self) {
        self.speaks.send_replace(false);
        while let Ok(Ok(stream)) = tokio::time::timeout(TAKEN_WITHIN, TcpStream::connect(self.address)).await
        {
            self.waiting.push(stream);
        }
    }
}

async fn answer(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let status = if head.starts_with(b"GET /health ") {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // The router may have disconnected.
    let _ = stream.write_all(answer.as_bytes()).await;
}
