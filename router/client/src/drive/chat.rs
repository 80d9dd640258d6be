//! The messages of a conversation and the request bodies built from them.

use bytes::Bytes;

use super::plan::PlannedTurn;
use super::text::{Words, first_words};
use simulator::fleet::mix;

/// The messages of a conversation so far.
#[derive(Debug)]
pub struct Chat {
    id: u64,
    block_size: u64,
    words: Words,
    messages: Vec<ChatMessage>,
}

#[derive(Debug)]
struct ChatMessage {
    role: &'static str,
    text: String,
    /// Tokens, as counted by the trace.
    tokens: u64,
}

impl Chat {
    /// Returns an empty conversation.
    pub fn new(id: u64, block_size: u64, words: Words) -> Self {
        Self {
            id,
            block_size: block_size.max(1),
            words,
            messages: Vec::new(),
        }
    }

    /// Adds the turn's new text, after truncating to the turn's history: an agent that drops its reasoning sends back
    /// less than was said. History that is missing (a trace cut out of a longer one) is generated.
    pub fn ask(&mut self, step: &PlannedTurn) {
        let kept = self.keep(step.history);
        let mut text = String::with_capacity(6 * step.input.saturating_sub(kept) as usize);
        for position in kept..step.input.max(kept + 1) {
            let (source, offset) = self.place(step, position);
            self.words.push(&mut text, source, offset);
        }
        self.messages.push(ChatMessage {
            role: "user",
            text,
            tokens: step.input.max(kept + 1) - kept,
        });
    }

    /// Adds the response. A failed response is replaced by generated text, so that the conversation keeps its length.
    pub fn answer(&mut self, text: Option<String>, step: &PlannedTurn) {
        let text = text.filter(|text| !text.is_empty()).unwrap_or_else(|| {
            let mut text = String::new();
            (0..step.response).for_each(|offset| {
                self.words
                    .push(&mut text, mix(self.private()), step.input + offset)
            });
            text
        });
        self.messages.push(ChatMessage {
            role: "assistant",
            text,
            tokens: step.response,
        });
    }

    /// Returns the request body of the latest turn.
    pub fn body(&self, model: &str, step: &PlannedTurn) -> Bytes {
        let length: usize = self.messages.iter().map(|message| message.text.len() + 48).sum();
        let mut body = String::with_capacity(length + model.len() + 192);
        body.push_str("{\"model\":");
        push_json(&mut body, model);
        body.push_str(",\"messages\":[");
        for (at, message) in self.messages.iter().enumerate() {
            body.push_str(if at == 0 { "{\"role\":\"" } else { ",{\"role\":\"" });
            body.push_str(message.role);
            body.push_str("\",\"content\":");
            push_json(&mut body, &message.text);
            body.push('}');
        }
        body.push_str("],\"max_tokens\":");
        body.push_str(&step.response.to_string());
        body.push_str(",\"ignore_eos\":true,\"temperature\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
        Bytes::from(body)
    }

    /// Keeps the first `history` tokens and returns their number, which is smaller if there were fewer.
    fn keep(&mut self, history: u64) -> u64 {
        let mut room = history;
        for at in 0..self.messages.len() {
            let message = &mut self.messages[at];
            if message.tokens <= room {
                room -= message.tokens;
                continue;
            }
            let kept = first_words(&message.text, room).len();
            message.text.truncate(kept);
            message.tokens = room;
            self.messages.truncate(if room == 0 { at } else { at + 1 });
            return history;
        }
        history - room
    }

    /// Returns the source of the word at a position of the prompt, and its offset there: the block if it has an id,
    /// or the conversation.
    fn place(&self, step: &PlannedTurn, position: u64) -> (u64, u64) {
        let block = usize::try_from(position / self.block_size)
            .ok()
            .and_then(|at| step.blocks.get(at));
        block.map_or((self.private(), position), |id| (*id, position % self.block_size))
    }

    /// Returns a word source that no block id collides with.
    fn private(&self) -> u64 {
        mix(self.id ^ 0x5eed_c0de_0000_0000)
    }
}

fn push_json(out: &mut String, text: &str) {
    // Generated words need no escaping, and checking for that is faster than escaping.
    if text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_alphanumeric())
    {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn step(history: u64, input: u64, response: u64, blocks: &[u64]) -> PlannedTurn {
        let at = std::time::Duration::ZERO;
        PlannedTurn {
            at,
            counted: true,
            history,
            input,
            response,
            blocks: blocks.to_vec(),
        }
    }

    fn chat(id: u64) -> Chat {
        Chat::new(id, 4, Words::new(1))
    }

    fn messages(chat: &Chat, step: &PlannedTurn) -> Vec<(String, String)> {
        let body: Value = serde_json::from_slice(&chat.body("m", step)).unwrap();
        let field = |message: &Value, name: &str| message[name].as_str().unwrap().to_owned();
        let list = body["messages"].as_array().unwrap();
        list.iter()
            .map(|message| (field(message, "role"), field(message, "content")))
            .collect()
    }

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn a_body_asks_for_a_stream_of_the_given_length() {
        let (mut chat, step) = (chat(1), step(0, 3, 17, &[]));
        chat.ask(&step);
        let body: Value = serde_json::from_slice(&chat.body("org/\"model\"", &step)).unwrap();
        assert_eq!(body["model"], "org/\"model\"");
        assert_eq!(body["max_tokens"], 17);
        assert_eq!(body["ignore_eos"], true);
        assert_eq!(body["stream"], true);
        assert_eq!(body["stream_options"]["include_usage"], true);
    }

    #[test]
    fn the_next_turn_extends_prompt_and_answer() {
        let mut chat = chat(1);
        let first = step(0, 5, 2, &[]);
        chat.ask(&first);
        let before = messages(&chat, &first);
        chat.answer(Some("grüß \"dich\"".to_owned()), &first);
        let second = step(7, 10, 2, &[]);
        chat.ask(&second);
        let after = messages(&chat, &second);
        assert_eq!(after[..1], before[..]);
        assert_eq!(after[1], ("assistant".to_owned(), "grüß \"dich\"".to_owned()));
        assert_eq!(words(&after[2].1), 3);
    }

    #[test]
    fn conversations_that_share_blocks_share_their_words() {
        let (mut one, mut two) = (chat(1), chat(2));
        let (a, b) = (step(0, 10, 1, &[7, 8, 9]), step(0, 12, 1, &[7, 8, 10]));
        one.ask(&a);
        two.ask(&b);
        let (one, two) = (messages(&one, &a)[0].1.clone(), messages(&two, &b)[0].1.clone());
        assert_eq!(first_words(&one, 8), first_words(&two, 8));
        assert_ne!(first_words(&one, 10), first_words(&two, 10));
        assert_eq!((words(&one), words(&two)), (10, 12));
    }

    #[test]
    fn conversations_without_blocks_share_nothing() {
        let step = step(0, 10, 1, &[]);
        let texts = [1, 2].map(|id| {
            let mut chat = chat(id);
            chat.ask(&step);
            messages(&chat, &step)[0].1.clone()
        });
        assert_ne!(first_words(&texts[0], 2), first_words(&texts[1], 2));
    }

    #[test]
    fn messages_beyond_the_turns_history_are_truncated() {
        let mut chat = chat(1);
        let first = step(0, 5, 4, &[]);
        chat.ask(&first);
        chat.answer(Some("a b c d".to_owned()), &first);
        let second = step(7, 9, 1, &[]);
        chat.ask(&second);
        assert_eq!(
            messages(&chat, &second)[1].1,
            "a b",
            "the end of the answer is dropped"
        );
        chat.answer(None, &second);
        let third = step(5, 6, 1, &[]);
        chat.ask(&third);
        let roles: Vec<_> = messages(&chat, &third)
            .into_iter()
            .map(|(role, _)| role)
            .collect();
        assert_eq!(roles, ["user", "user"], "the whole answer is dropped");
    }

    #[test]
    fn missing_history_is_generated() {
        let (mut chat, step) = (chat(1), step(100, 103, 1, &[]));
        chat.ask(&step);
        assert_eq!(words(&messages(&chat, &step)[0].1), 103);
    }

    #[test]
    fn a_failed_response_is_replaced_by_generated_text_of_its_length() {
        let (mut chat, first) = (chat(1), step(0, 5, 6, &[]));
        chat.ask(&first);
        chat.answer(None, &first);
        let next = step(11, 12, 1, &[]);
        chat.ask(&next);
        assert_eq!(words(&messages(&chat, &next)[1].1), 6);
    }

    #[test]
    fn a_turn_without_new_tokens_still_adds_a_word() {
        let mut chat = chat(1);
        let first = step(0, 2, 1, &[]);
        chat.ask(&first);
        chat.answer(None, &first);
        let empty = step(3, 3, 1, &[]);
        chat.ask(&empty);
        assert_eq!(words(&messages(&chat, &empty)[2].1), 1);
    }
}
