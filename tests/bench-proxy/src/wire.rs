//! A minimal client connection, because it shares a processor with the engines.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use memchr::{memchr_iter, memmem};
use tokio::net::TcpStream;

/// Bytes per read.
const BUFFER: usize = 64 * 1024;

/// A kept-alive connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The part of the buffer that was read but not parsed.
    filled: std::ops::Range<usize>,
}

enum Framing {
    Length(usize),
    Chunked,
}

/// The parser's state in a chunked body.
enum Chunk {
    /// In the line with the chunk's size.
    Size(usize),
    /// In the chunk's data, with the number of bytes left.
    Data(usize),
    /// In the line break after the data, with the number of bytes left.
    Break(usize),
    /// In the trailer, with the length of its current line.
    Trailer(usize),
}

/// Counts events; each ends with an empty line.
#[derive(Default)]
pub(crate) struct Events {
    after_break: bool,
}

impl Events {
    /// Returns the number of events that end in these bytes.
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut ends = 0;
        let mut last = if self.after_break { Some(usize::MAX) } else { None };
        for at in memchr_iter(b'\n', bytes) {
            if last.is_some_and(|last| last.wrapping_add(1) == at) {
                ends += 1;
                last = None;
            } else {
                last = Some(at);
            }
        }
        self.after_break = last.is_some_and(|last| last.wrapping_add(1) == bytes.len());
        ends
    }
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: vec![0; BUFFER],
            filled: 0..0,
        })
    }

    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(&mut self.buffer[self.filled.end..]) {
                Ok(0) => bail!("the connection was closed"),
                Ok(count) => {
                    self.filled.end += count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a response to its end. Calls `seen` after each read with the number of events that ended in it.
    /// Fails if the status is not 200 or the connection breaks.
    pub(crate) async fn receive(&mut self, mut seen: impl FnMut(u64)) -> anyhow::Result<()> {
        let framing = self.head().await?;
        let mut events = Events::default();
        match framing {
            Framing::Length(mut left) => loop {
                let taken = left.min(self.filled.len());
                let from = self.filled.start;
                let ended = events.count(&self.buffer[from..from + taken]);
                self.filled.start += taken;
                left -= taken;
                if taken > 0 {
                    seen(ended);
                }
                if left == 0 {
                    return Ok(());
                }
                self.fill().await?;
            },
            Framing::Chunked => {
                let mut at = Chunk::Size(0);
                loop {
                    let (done, ended) = self.chunks(&mut at, &mut events)?;
                    seen(ended);
                    if done {
                        return Ok(());
                    }
                    self.fill().await?;
                }
            }
        }
    }

    async fn head(&mut self) -> anyhow::Result<Framing> {
        loop {
            if let Some(end) = memmem::find(&self.buffer[self.filled.clone()], b"\r\n\r\n") {
                let head = self.buffer[self.filled.start..self.filled.start + end].to_ascii_lowercase();
                self.filled.start += end + 4;
                return framing(&String::from_utf8_lossy(&head));
            }
            if self.filled.end == BUFFER {
                bail!("a head without an end");
            }
            self.fill().await?;
        }
    }

    /// Parses the chunked data that was read. Returns whether the body ended, and the number of events that did.
    fn chunks(&mut self, at: &mut Chunk, events: &mut Events) -> anyhow::Result<(bool, u64)> {
        let mut ended = 0;
        while !self.filled.is_empty() {
            let bytes = &self.buffer[self.filled.clone()];
            match at {
                Chunk::Data(left) => {
                    let taken = bytes.len().min(*left);
                    ended += events.count(&bytes[..taken]);
                    self.filled.start += taken;
                    *left -= taken;
                    if *left == 0 {
                        *at = Chunk::Break(2);
                    }
                }
                Chunk::Break(left) => {
                    let taken = bytes.len().min(*left);
                    self.filled.start += taken;
                    *left -= taken;
                    if *left == 0 {
                        *at = Chunk::Size(0);
                    }
                }
                Chunk::Size(size) => {
                    let byte = bytes[0];
                    self.filled.start += 1;
                    match byte {
                        b'\n' if *size == 0 => *at = Chunk::Trailer(0),
                        b'\n' => *at = Chunk::Data(*size),
                        b'\r' => {}
                        digit => {
                            let Some(digit) = char::from(digit).to_digit(16) else {
                                bail!("a chunk size that is none")
                            };
                            *size = (*size << 4) | digit as usize;
                        }
                    }
                }
                Chunk::Trailer(length) => {
                    let byte = bytes[0];
                    self.filled.start += 1;
                    match byte {
                        b'\n' if *length == 0 => return Ok((true, ended)),
                        b'\n' => *length = 0,
                        b'\r' => {}
                        _ => *length += 1,
                    }
                }
            }
        }
        Ok((false, ended))
    }
}

/// Returns the framing of a head in lower case.
fn framing(head: &str) -> anyhow::Result<Framing> {
    let (status, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    if !status.contains(" 200 ") {
        bail!("answered: {status}");
    }
    let field = |name: &str| {
        fields
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    if let Some(length) = field("content-length") {
        return Ok(Framing::Length(length.trim().parse().context("content-length")?));
    }
    match field("transfer-encoding") {
        Some(coding) if coding.trim() == "chunked" => Ok(Framing::Chunked),
        _ => bail!("an answer without an end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_counted_once_wherever_it_is_cut() {
        let text = b"data: 1\n\ndata: 2\n\n\n\n: x\ny\n\n";
        let whole = Events::default().count(text);
        for cut in 0..=text.len() {
            let mut events = Events::default();
            assert_eq!(
                events.count(&text[..cut]) + events.count(&text[cut..]),
                whole,
                "{cut}"
            );
        }
        let mut bytewise = Events::default();
        assert_eq!(
            text.iter().map(|byte| bytewise.count(&[*byte])).sum::<u64>(),
            whole
        );
        assert_eq!(whole, 4);
    }
}
