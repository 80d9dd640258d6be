//! Whether a stream is what the engine sent, byte for byte.
//!
//! A fast engine's reply follows from its request alone: so a reference is asked for once of an engine itself, for each
//! shape of request, and only the reply's name and the time of its making may differ.

use std::net::SocketAddr;

use serde_json::json;

use crate::client::{self, CHAT};
use crate::talk::{ask, words};

/// A question of so many words to which the answer is a stream of so many tokens: a shape.
#[must_use]
pub fn body(reply: u64, question: u64) -> String {
    ask(
        &words(question, question as usize),
        json!({ "stream": true, "max_tokens": reply }),
    )
    .to_string()
}

/// A reply to the request of this id, without its name and the time when it was made.
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

/// What an engine says to a shape, timeless.
///
/// # Panics
/// If it does not say it all.
pub async fn reference(engine: SocketAddr, reply: u64, question: u64) -> String {
    let id = [("x-request-id", "reference")];
    let answer = client::call(engine, "POST", CHAT, &id, body(reply, question)).await;
    assert!(answer.clean && answer.status == 200);
    timeless(&answer.body, "reference")
}
