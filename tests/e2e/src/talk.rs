//! Conversations, and the bodies that carry them.

use serde_json::{Value, json};

/// The model that the simulated engines serve.
pub const MODEL: &str = "sim";

/// Text of `count` words that depends on the seed alone; one word is one token of a simulated engine.
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

/// A chat body of these messages with further fields.
#[must_use]
pub fn chat(messages: &[(&str, &str)], extra: Value) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    with(json!({ "model": MODEL, "messages": messages }), extra)
}

/// A chat body of one question.
#[must_use]
pub fn ask(text: &str, extra: Value) -> Value {
    chat(&[("user", text)], extra)
}

/// The body with further fields.
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
    /// A conversation with a system prompt.
    #[must_use]
    pub fn new(system: &str) -> Self {
        Self {
            messages: vec![json!({ "role": "system", "content": system })],
        }
    }

    /// The user says something.
    pub fn user(&mut self, text: &str) {
        self.messages.push(json!({ "role": "user", "content": text }));
    }

    /// The assistant said something.
    pub fn assistant(&mut self, text: &str) {
        self.messages
            .push(json!({ "role": "assistant", "content": text }));
    }

    /// A message as it is.
    pub fn push(&mut self, message: Value) {
        self.messages.push(message);
    }

    /// Times that the user has spoken.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message["role"] == "user")
            .count()
    }

    /// The body of the next request.
    #[must_use]
    pub fn body(&self, extra: Value) -> Value {
        with(json!({ "model": MODEL, "messages": self.messages }), extra)
    }
}
