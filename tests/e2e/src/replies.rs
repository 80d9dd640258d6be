//! Compares streams with the engine's, byte for byte.
//!
//! A fast engine's reply depends only on its request. So one reference per shape of request is fetched from an engine
//! directly, and only the reply's id and creation time may differ.

use std::net::SocketAddr;

use serde_json::json;

use crate::client::{self, CHAT};
use crate::talk::{ask, words};

/// Returns a request for a streamed reply of `reply` tokens to a question of `question` words.
#[must_use]
pub fn body(reply: u64, question: u64) -> String {
    ask(
        &words(question, question as usize),
        json!({ "stream": true, "max_tokens": reply }),
    )
    .to_string()
}

/// Returns the reply to the request with this id, without creation time and with a constant id.
#[must_use]
pub fn timeless(reply: &[u8], id: &str) -> String {
    let text = String::from_utf8_lossy(reply).replace(&format!("chatcmpl-{id}"), "ID");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("\"created\":") {
        let (head, tail) = rest.split_at(at + "\"created\":".len());
        out.push_str(head);
        rest = tail.trim_start_matches(|char: char| char.is_ascii_digit());
    }
    out + rest
}

/// Fetches an engine's reply to [`body`], as [`timeless`] returns it.
///
/// # Panics
/// If the reply is incomplete.
pub async fn reference(engine: SocketAddr, reply: u64, question: u64) -> String {
    let id = [("x-request-id", "reference")];
    let answer = client::call(engine, "POST", CHAT, &id, body(reply, question)).await;
    assert!(answer.clean && answer.status == 200);
    timeless(&answer.body, "reference")
}
