//! Replies that call tools. A call is generated as `<|call|>name<|arguments|>arguments<|/call|>` after the reply's
//! text, and the template renders a call in a message the same way, so a call in the history becomes the same tokens
//! that were generated. Its id is not rendered, as in most models' templates.

use serde_json::{Value, json};

use crate::text;
use crate::tokens::{piece_token, pieces, push_text, special_token};

const CALL: &str = "<|call|>";
const ARGUMENTS: &str = "<|arguments|>";
const END: &str = "<|/call|>";

/// The visible effect of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Text(String),
    /// A call begins: its name is complete.
    Call(usize),
    Arguments(usize, String),
    /// No effect: part of a name, or a mark.
    Nothing,
}

/// A reply that calls tools.
#[derive(Clone, Debug, Default)]
pub struct Script {
    tokens: Vec<u32>,
    said: Vec<Said>,
    /// Id and name of each call.
    calls: Vec<[String; 2]>,
}

impl Script {
    /// Returns a reply of about `limit` tokens drawn by `seed`: some text, then a call of each function in `names`.
    pub fn new(seed: u64, limit: u32, multibyte: bool, names: &[&str]) -> Self {
        let mut script = Self::default();
        let text = limit / 4;
        for at in 0..text {
            script.say(text::word(seed, at, multibyte), Said::Text);
        }
        let (count, mut from) = (names.len().max(1) as u32, text);
        for (index, name) in names.iter().enumerate() {
            script
                .calls
                .push([format!("call_{seed:016x}_{index}"), (*name).to_owned()]);
            script.mark(CALL);
            script.say(name, |_| Said::Nothing);
            script.said.pop();
            script.said.push(Said::Call(index));
            script.mark(ARGUMENTS);
            // Tokens beside the words are subtracted; at least one word remains.
            let words = ((limit - text) / count).saturating_sub(16).max(1);
            let arguments = json!({ "text": text::words(seed, from..from + words, multibyte), "n": index });
            script.say(&arguments.to_string(), |piece| Said::Arguments(index, piece));
            script.mark(END);
            from += words;
        }
        script
    }

    fn mark(&mut self, name: &str) {
        self.tokens.push(special_token(name));
        self.said.push(Said::Nothing);
    }

    fn say(&mut self, text: &str, said: impl Fn(String) -> Said) {
        for piece in pieces(text) {
            self.tokens.push(piece_token(piece));
            self.said.push(said(piece.to_owned()));
        }
    }

    /// Returns the number of tokens of the whole reply.
    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the token at `index`; 0 past the end.
    pub fn token(&self, index: u32) -> u32 {
        self.tokens.get(index as usize).copied().unwrap_or_default()
    }

    /// Returns the stream deltas of these tokens.
    pub fn deltas(&self, tokens: std::ops::Range<u32>) -> Vec<Value> {
        let mut deltas: Vec<Value> = Vec::new();
        let (mut text, mut arguments): (String, Option<(usize, String)>) = Default::default();
        let said = self
            .said
            .get(tokens.start as usize..tokens.end.min(self.len()) as usize);
        for said in said.unwrap_or_default().iter().chain([&Said::Nothing]) {
            if !text.is_empty() && !matches!(said, Said::Text(_)) {
                deltas.push(json!({ "content": std::mem::take(&mut text) }));
            }
            if !matches!(said, Said::Arguments(..))
                && let Some((index, more)) = arguments.take()
            {
                deltas.push(json!({ "tool_calls": [{ "index": index, "function": { "arguments": more } }] }));
            }
            match said {
                Said::Text(piece) => text += piece,
                Said::Call(index) => deltas.push(json!({ "tool_calls": [self.call(*index, "", true)] })),
                Said::Arguments(index, piece) => arguments.get_or_insert((*index, String::new())).1 += piece,
                Said::Nothing => {}
            }
        }
        deltas
    }

    /// Returns the message of the first `tokens` tokens.
    pub fn message(&self, tokens: u32) -> Value {
        let (mut content, mut calls) = (String::new(), Vec::new());
        for said in self.said.iter().take(tokens as usize) {
            match said {
                Said::Text(piece) => content += piece,
                Said::Call(_) => calls.push(String::new()),
                Said::Arguments(index, piece) => calls[*index] += piece,
                Said::Nothing => {}
            }
        }
        let calls: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(index, arguments)| self.call(index, arguments, false))
            .collect();
        let content = if content.is_empty() {
            Value::Null
        } else {
            content.into()
        };
        json!({ "role": "assistant", "content": content, "tool_calls": calls })
    }

    fn call(&self, index: usize, arguments: &str, streamed: bool) -> Value {
        let [id, name] = &self.calls[index];
        let mut call =
            json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        if streamed {
            call["index"] = index.into();
        }
        call
    }
}

/// Appends the template's rendering of a message's `tool_calls`.
pub(crate) fn render(calls: &Value, tokens: &mut Vec<u32>) {
    for call in calls.as_array().into_iter().flatten() {
        let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
        tokens.push(special_token(CALL));
        push_text(name.as_str().unwrap_or_default(), tokens);
        tokens.push(special_token(ARGUMENTS));
        match arguments.as_str() {
            Some(text) => push_text(text, tokens),
            None => push_text(&arguments.to_string(), tokens),
        }
        tokens.push(special_token(END));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_equal_the_templates_rendering() {
        for (limit, names) in [
            (4, &["f"][..]),
            (60, &["read_file"]),
            (200, &["read_file", "edit"]),
        ] {
            let script = Script::new(7, limit, true, names);
            let message = script.message(script.len());
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), names.len());
            let mut tokens = Vec::new();
            push_text(message["content"].as_str().unwrap(), &mut tokens);
            render(&message["tool_calls"], &mut tokens);
            assert_eq!(tokens, script.tokens);
            assert_eq!(script.said.len(), script.tokens.len());
        }
    }

    #[test]
    fn deltas_add_up_to_the_message_however_they_are_cut() {
        let script = Script::new(7, 80, true, &["read_file", "edit"]);
        for step in [1, 3, 7, 1000] {
            let (mut content, mut calls) = (String::new(), vec![String::new(); 2]);
            for from in (0..script.len()).step_by(step) {
                for delta in script.deltas(from..from + step as u32) {
                    content += delta["content"].as_str().unwrap_or_default();
                    for call in delta["tool_calls"].as_array().into_iter().flatten() {
                        let arguments = call["function"]["arguments"].as_str().unwrap();
                        calls[call["index"].as_u64().unwrap() as usize] += arguments;
                    }
                }
            }
            let whole = script.message(script.len());
            assert_eq!(whole["content"], content);
            for (at, arguments) in calls.iter().enumerate() {
                assert_eq!(whole["tool_calls"][at]["function"]["arguments"], *arguments);
            }
        }
    }
}
