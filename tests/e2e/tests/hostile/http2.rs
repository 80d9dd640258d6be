//! Hostile clients with HTTP/2 by prior knowledge, frame by frame.

use std::io;
use std::time::Duration;

use tailroute_e2e::client::CHAT;
use tokio::io::AsyncWriteExt as _;

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, Raw, SETTINGS, block,
    frame, literal,
};
use crate::http1::QUESTION;
use crate::stage::{RUDE, bearer};
use crate::strangers::{Ends, Kind, Target, until_closed};

/// Interval between the pieces of a flood or of a slow client.
const EVERY: Duration = Duration::from_millis(50);
/// Frames per piece of a flood.
const FLOOD: usize = 50;
/// Time that a client stays without reading.
const UNREAD: Duration = Duration::from_secs(10);

pub(crate) const KINDS: [Kind; 13] = [
    Kind {
        name: "HTTP/2: half a preface",
        connections: 20,
        ends: Ends::Router,
        life: |target| Box::pin(half_a_preface(target)),
    },
    Kind {
        name: "HTTP/2: a preface and silence",
        connections: 40,
        ends: Ends::Router,
        life: |target| Box::pin(async move { Raw::open(&target, b"").await?.until_closed(b"", EVERY).await }),
    },
    Kind {
        name: "HTTP/2: silence after one 401",
        connections: 100,
        ends: Ends::Router,
        life: |target| Box::pin(async move { refused(&target).await?.until_closed(b"", EVERY).await }),
    },
    Kind {
        name: "HTTP/2: 300 kB of a header block that does not end",
        connections: 200,
        ends: Ends::Router,
        life: |target| Box::pin(half_a_block(target)),
    },
    Kind {
        name: "HTTP/2: a header block without end",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(endless_block(target)),
    },
    Kind {
        name: "HTTP/2: nothing but PING",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(flood(target, PING, b"12345678")),
    },
    Kind {
        name: "HTTP/2: nothing but SETTINGS",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(flood(target, SETTINGS, &[0, 4, 0, 0, 255, 255])),
    },
    Kind {
        name: "HTTP/2: PING without reading",
        connections: 10,
        ends: Ends::Stranger,
        life: |target| Box::pin(unread_pings(target)),
    },
    Kind {
        name: "HTTP/2: streams that are opened and reset",
        connections: 4,
        ends: Ends::Stranger,
        life: |target| Box::pin(rapid_reset(target)),
    },
    Kind {
        name: "HTTP/2: streams without a body",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(open_streams(target)),
    },
    Kind {
        name: "HTTP/2: DATA without data",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(empty_data(target)),
    },
    Kind {
        name: "HTTP/2: answers without a window",
        connections: 10,
        ends: Ends::Router,
        life: |target| Box::pin(no_window(target)),
    },
    Kind {
        name: "HTTP/2: GOAWAY and no end",
        connections: 20,
        ends: Ends::Router,
        life: |target| Box::pin(goes_away(target)),
    },
];

fn asking(mode: &str) -> Vec<u8> {
    block(
        "POST",
        CHAT,
        &[("authorization", &bearer(RUDE)), ("x-mode", mode)],
    )
}

/// Opens a connection whose only request was rejected.
pub(crate) async fn refused(target: &Target) -> io::Result<Raw> {
    let mut raw = Raw::open(target, b"").await?;
    raw.write(&frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &block("GET", "/v1/models", &[]),
    ))
    .await?;
    Ok(raw)
}

/// Opens a connection with an unfinished header block.
pub(crate) async fn in_a_block(target: &Target, pieces: usize) -> io::Result<Raw> {
    let mut raw = refused(target).await?;
    raw.write(&frame(HEADERS, 0, 3, &block("POST", CHAT, &[])))
        .await?;
    for number in 0..pieces {
        let piece = literal(&format!("x-{number}"), &"a".repeat(15_900));
        if raw.write(&frame(CONTINUATION, 0, 3, &piece)).await.is_err() {
            break;
        }
    }
    Ok(raw)
}

async fn half_a_preface(target: Target) -> io::Result<()> {
    let mut stream = target.connect().await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM").await?;
    until_closed(stream, b"", EVERY).await
}

pub(crate) async fn half_a_block(target: Target) -> io::Result<()> {
    in_a_block(&target, 19).await?.until_closed(b"", EVERY).await
}

async fn endless_block(target: Target) -> io::Result<()> {
    let raw = in_a_block(&target, 1).await?;
    let piece = frame(CONTINUATION, 0, 3, &literal("x-more", &"a".repeat(15_900)));
    raw.until_closed(&piece, EVERY).await
}

async fn flood(target: Target, kind: u8, payload: &[u8]) -> io::Result<()> {
    let piece = frame(kind, 0, 0, payload).repeat(FLOOD);
    refused(&target).await?.until_closed(&piece, EVERY).await
}

async fn unread_pings(target: Target) -> io::Result<()> {
    let mut raw = refused(&target).await?;
    let piece = frame(PING, 0, 0, b"12345678").repeat(FLOOD);
    let writing = async {
        loop {
            raw.write(&piece).await?;
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::time::timeout(UNREAD, writing).await?
}

async fn rapid_reset(target: Target) -> io::Result<()> {
    let mut raw = Raw::open(&target, b"").await?;
    let block = asking("hang");
    for round in 0..20_u32 {
        let mut piece = Vec::new();
        for number in 0..FLOOD as u32 {
            let stream = 1 + 2 * (round * FLOOD as u32 + number);
            piece.extend(frame(HEADERS, END_HEADERS, stream, &block));
            if number.is_multiple_of(2) {
                piece.extend(frame(DATA, END_STREAM, stream, QUESTION.as_bytes()));
            }
            piece.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        raw.write(&piece).await?;
        tokio::time::sleep(EVERY).await;
    }
    Ok(())
}

async fn open_streams(target: Target) -> io::Result<()> {
    let mut raw = Raw::open(&target, b"").await?;
    let block = asking("ok");
    let streams = (0..100).flat_map(|number| frame(HEADERS, END_HEADERS, 1 + 2 * number, &block));
    raw.write(&streams.collect::<Vec<u8>>()).await?;
    raw.until_closed(b"", EVERY).await
}

async fn empty_data(target: Target) -> io::Result<()> {
    let mut raw = Raw::open(&target, b"").await?;
    raw.write(&frame(HEADERS, END_HEADERS, 1, &asking("ok"))).await?;
    raw.until_closed(&frame(DATA, 0, 1, b"").repeat(FLOOD), EVERY)
        .await
}

async fn no_window(target: Target) -> io::Result<()> {
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut raw = Raw::open(&target, &[0, 4, 0, 0, 0, 0]).await?;
    let block = asking("big");
    for number in 0..10 {
        let stream = 1 + 2 * number;
        raw.write(&frame(HEADERS, END_HEADERS, stream, &block)).await?;
        raw.write(&frame(DATA, END_STREAM, stream, QUESTION.as_bytes()))
            .await?;
    }
    raw.until_closed(b"", EVERY).await
}

async fn goes_away(target: Target) -> io::Result<()> {
    let mut raw = refused(&target).await?;
    raw.write(&frame(GOAWAY, 0, 0, &[0; 8])).await?;
    raw.until_closed(b"", EVERY).await
}
