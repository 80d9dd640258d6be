//! Chat requests of a given size: a system prompt, then alternating messages.
//!
//! A request is built once per connection and changed in place: the conversation's number is in the first user
//! message, so that different conversations share only the system prompt, and the turn's number in the last message.
//! A router that reads prompts finds the prefix again from turn to turn.

use std::fmt::Write as _;

/// Digits of the numbers in a request.
const DIGITS: usize = 10;
/// Approximate bytes of a message's text: minimum, maximum, and the divisor of the body's size in between. Long
/// messages stand for tool output and documents.
const MESSAGE_BYTES: (usize, usize, usize) = (900, 16 << 10, 32);
const SYSTEM: &str = "You are a careful assistant. Answer in few words, and say so when you do not know.";
const WORDS: [&str; 16] = [
    "cache", "turn", "the", "of", "worker", "latency", "and", "a", "prefix", "router", "is", "to", "token",
    "queue", "in", "stream",
];

pub(crate) struct Request {
    bytes: Vec<u8>,
    conversation_at: usize,
    turn_at: usize,
}

/// The parameters of a request.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Approximate size of the body in bytes.
    pub size: usize,
    /// Tokens of the reply.
    pub tokens: u32,
    /// Whether it streams.
    pub stream: bool,
}

impl Request {
    /// Returns the request of connection `seed` to a server at `host`.
    pub(crate) fn new(host: &str, asked: Asked, seed: u64) -> Self {
        let number = "0".repeat(DIGITS);
        let mut body = format!(
            "{{\"model\":\"sim\",\"stream\":{},\"max_tokens\":{},\"messages\":[{{\"role\":\"system\",\"content\":\"{SYSTEM}\"}}",
            asked.stream, asked.tokens
        );
        let conversation = ",{\"role\":\"user\",\"content\":\"Conversation ";
        let conversation_at = body.len() + conversation.len();
        let _ = write!(body, "{conversation}{number} of connection {seed}.\"}}");
        let (least, most, share) = MESSAGE_BYTES;
        let message = (asked.size / share).clamp(least, most);
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut role = "assistant";
        while body.len() + 200 < asked.size {
            let _ = write!(body, ",{{\"role\":\"{role}\",\"content\":\"");
            let until = (body.len() + message).min(asked.size - 100);
            while body.len() < until {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                body.push_str(WORDS[(random % 16) as usize]);
                body.push(' ');
            }
            body.push_str("\"}");
            role = if role == "user" { "assistant" } else { "user" };
        }
        let turn = ",{\"role\":\"user\",\"content\":\"Turn ";
        let turn_at = body.len() + turn.len();
        let _ = write!(body, "{turn}{number}: go on.\"}}]}}");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nuser-agent: bench-proxy\r\naccept: */*\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let conversation_at = conversation_at + head.len();
        let turn_at = turn_at + head.len();
        Self {
            bytes: (head + &body).into_bytes(),
            conversation_at,
            turn_at,
        }
    }

    pub(crate) fn turn(&mut self, conversation: u64, turn: u64) -> &[u8] {
        for (at, number) in [(self.conversation_at, conversation), (self.turn_at, turn)] {
            let digits = format!("{:0DIGITS$}", number % 10_u64.pow(DIGITS as u32));
            self.bytes[at..at + DIGITS].copy_from_slice(digits.as_bytes());
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_json_of_about_the_requested_size() {
        for size in [0, 8 << 10, 1 << 20] {
            let asked = Asked {
                size,
                tokens: 3,
                stream: true,
            };
            let mut request = Request::new("h", asked, 7);
            let bytes = request.turn(123, 4).to_vec();
            let text = String::from_utf8(bytes).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("content-length: {}", body.len())));
            assert!(
                body.len() >= size - size / 50 && body.len() <= size + 400,
                "{size}: {}",
                body.len()
            );
            let json: serde_json::Value = serde_json::from_str(body).unwrap();
            let messages = json["messages"].as_array().unwrap();
            let said = |at: usize| messages[at]["content"].as_str().unwrap();
            assert_eq!(said(1), "Conversation 0000000123 of connection 7.");
            assert_eq!(said(messages.len() - 1), "Turn 0000000004: go on.");
        }
    }
}
