//! HTTP/2 frames and header blocks built by hand, for clients that violate the protocol.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::strangers::Target;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns a literal field without indexing.
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match u8::try_from(text.len()) {
            Ok(length) if length < 127 => bytes.push(length),
            _ => {
                bytes.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    bytes.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                bytes.push(rest as u8);
            }
        }
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Returns a request's header block.
pub(crate) fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "router.test"),
    ];
    let all = pseudo.iter().chain(fields);
    all.flat_map(|(name, value)| literal(name, value)).collect()
}

/// A connection after its preface.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

impl Raw {
    /// Connects with these settings.
    pub(crate) async fn open(target: &Target, settings: &[u8]) -> io::Result<Self> {
        let mut stream = target.connect().await?;
        let first = [
            PREFACE,
            &frame(SETTINGS, 0, 0, settings),
            &frame(SETTINGS, ACK, 0, b""),
        ];
        stream.write_all(&first.concat()).await?;
        Ok(Self { stream })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Answers pings and writes a piece repeatedly, if not empty, until the peer has closed.
    pub(crate) async fn until_closed(self, piece: &[u8], every: Duration) -> io::Result<()> {
        let (reader, mut writer) = self.stream.into_split();
        let (pongs, mut due) = tokio::sync::mpsc::channel(16);
        let reading = tokio::spawn(async move { read(reader, &pongs).await });
        let dripping = !piece.is_empty();
        tokio::pin!(reading);
        loop {
            tokio::select! {
                _ = &mut reading => return Ok(()),
                Some(pong) = due.recv() => { let _ = answer(&mut writer, &pong).await; }
                () = tokio::time::sleep(every), if dripping => if writer.write_all(piece).await.is_err() {
                    let _ = reading.await;
                    return Ok(());
                },
            }
        }
    }
}

async fn answer(writer: &mut OwnedWriteHalf, pong: &[u8]) -> io::Result<()> {
    writer.write_all(&frame(PING, ACK, 0, pong)).await
}

/// Reads frames until the end, and passes on the payloads of pings.
async fn read(mut reader: OwnedReadHalf, pings: &tokio::sync::mpsc::Sender<Vec<u8>>) {
    loop {
        let mut head = [0; 9];
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            return;
        }
        if head[3] == PING && head[4] & ACK == 0 {
            let _ = pings.send(payload).await;
        }
    }
}
