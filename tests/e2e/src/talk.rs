//! Conversations and their request bodies.

use serde_json::{Value, json};

/// The model of the simulated engines.
pub const MODEL: &str = "sim";

/// Returns `count` words determined by the seed. One word is one token of a simulated engine.
#[must_use]
pub fn words(seed: u64, count: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::with_capacity(6 * count);
    for _ in 0..count {
        text.push(' ');
        for _ in 0..5 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push(char::from(b'a' + ((state >> 33) % 26) as u8));
        }
    }
    text
}

/// Returns a chat body of these messages with extra fields.
#[must_use]
pub fn chat(messages: &[(&str, &str)], extra: Value) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    with(json!({ "model": MODEL, "messages": messages }), extra)
}

/// Returns a chat body of one question.
#[must_use]
pub fn ask(text: &str, extra: Value) -> Value {
    chat(&[("user", text)], extra)
}

/// Returns the body with extra fields.
#[must_use]
pub fn with(mut body: Value, extra: Value) -> Value {
    if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
        body.extend(extra);
    }
    body
}

/// A conversation that grows turn by turn.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// Returns a conversation with a system prompt.
    #[must_use]
    pub fn new(system: &str) -> Self {
        Self {
            messages: vec![json!({ "role": "system", "content": system })],
        }
    }

    /// Adds a user message.
    pub fn user(&mut self, text: &str) {
        self.messages.push(json!({ "role": "user", "content": text }));
    }

    /// Adds an assistant message.
    pub fn assistant(&mut self, text: &str) {
        self.messages
            .push(json!({ "role": "assistant", "content": text }));
    }

    /// Adds a message.
    pub fn push(&mut self, message: Value) {
        self.messages.push(message);
    }

    /// Returns the number of user messages.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message["role"] == "user")
            .count()
    }

    /// Returns the body of the next request.
    #[must_use]
    pub fn body(&self, extra: Value) -> Value {
        with(json!({ "model": MODEL, "messages": self.messages }), extra)
    }
}
