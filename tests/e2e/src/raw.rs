//! A client that writes arbitrary bytes and reads complete responses.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::client::code_of;
use crate::wait::within;

/// A response, read according to RFC 9112.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    pub status: u16,
    /// Header fields; names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl RawAnswer {
    /// Checks that the response is an error in OpenAI's format and returns its code.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub fn error_code(&self) -> String {
        let kind = self.headers.get("content-type").map(String::as_str);
        assert_eq!(kind, Some("application/json"), "{self:?}");
        let json: Value = serde_json::from_slice(&self.body).expect("JSON");
        code_of(&json)
    }
}

/// A connection for arbitrary bytes.
#[derive(Debug)]
pub struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    /// Connects.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Wraps an existing connection.
    #[must_use]
    pub fn over(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Writes all bytes.
    ///
    /// # Panics
    /// If the peer does not accept them.
    pub async fn write(&mut self, bytes: &[u8]) {
        within(self.stream.get_mut().write_all(bytes))
            .await
            .expect("all of it is taken");
    }

    /// Shuts down the write side. The read side stays open.
    ///
    /// # Panics
    /// If that fails.
    pub async fn finish_writing(&mut self) {
        self.stream.get_mut().shutdown().await.unwrap();
    }

    /// Reads a complete response; `None` if the connection ended instead.
    ///
    /// # Panics
    /// If the response is incomplete or invalid.
    pub async fn answer(&mut self) -> Option<RawAnswer> {
        within(self.read_answer()).await
    }

    /// Reads up to the end of these bytes.
    ///
    /// # Panics
    /// If they do not come.
    pub async fn read_past(&mut self, wanted: &[u8]) {
        let mut seen = Vec::new();
        while !seen.ends_with(wanted) {
            seen.push(within(self.stream.read_u8()).await.expect("more to come"));
        }
    }

    /// Waits until the peer closes the connection. Returns whether nothing more was received.
    pub async fn closes(&mut self) -> bool {
        let mut more = Vec::new();
        // A reset counts as a close.
        let _ = within(self.stream.read_to_end(&mut more)).await;
        more.is_empty()
    }

    async fn read_answer(&mut self) -> Option<RawAnswer> {
        let head = self.head().await?;
        let (line, fields) = head.split_once("\r\n").unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = fields
            .lines()
            .filter_map(|field| field.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut body = Vec::new();
        if matches!(status, 204 | 304) {
            // Such a response has no body, whatever its headers say.
        } else if let Some(length) = headers.get("content-length") {
            body.resize(length.parse().unwrap(), 0);
            self.stream.read_exact(&mut body).await.expect("a whole body");
        } else if headers
            .get("transfer-encoding")
            .is_some_and(|how| how == "chunked")
        {
            self.chunks(&mut body).await;
        } else {
            self.stream.read_to_end(&mut body).await.expect("a body");
        }
        Some(RawAnswer {
            status,
            headers,
            body,
        })
    }

    async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) if head.is_empty() => return None,
                Err(error) => panic!("{error} within {:?}", String::from_utf8_lossy(&head)),
            }
        }
        Some(String::from_utf8(head).unwrap())
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) {
        loop {
            let mut size = Vec::new();
            while !size.ends_with(b"\r\n") {
                size.push(self.stream.read_u8().await.expect("a chunk's size"));
            }
            let size = std::str::from_utf8(&size).unwrap().trim();
            let size = usize::from_str_radix(size, 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.stream.read_exact(&mut chunk).await.expect("a whole chunk");
            if size == 0 {
                return;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
}

/// Builds a request from a request line, header fields and a body.
#[must_use]
pub fn request(line: &str, fields: &[&str], body: &str) -> Vec<u8> {
    let mut text = format!("{line} HTTP/1.1\r\nhost: router.test\r\n");
    for field in fields {
        text.push_str(field);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// Writes these bytes completely on a new connection, then reads one response.
///
/// # Panics
/// If the bytes are not accepted, or there is no response.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> RawAnswer {
    attempt(address, bytes).await.unwrap().expect("an answer")
}

/// Writes these bytes completely on a new connection, then reads one response; `None` if the peer closes instead.
/// Fails if the bytes are not accepted.
pub async fn attempt(address: SocketAddr, bytes: &[u8]) -> Result<Option<RawAnswer>, String> {
    let mut wire = Wire::connect(address).await;
    within(wire.stream.get_mut().write_all(bytes))
        .await
        .map_err(|error| format!("the bytes are not taken: {error}"))?;
    Ok(wire.answer().await)
}
