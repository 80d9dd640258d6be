//! The events of a streamed response: `response.created` and `response.in_progress` at once, those of each item, and
//! `response.completed`, which as in vLLM has that name for incomplete responses too; their `status` says so.

use serde_json::{Value, json};

use super::{call_item, item_id, response, text_item, text_part, whole};
use crate::http::form::Form;
use crate::http::shape::Shape;
use crate::scheduler::Progress;

enum Item {
    None,
    /// A message and its text so far.
    Text(String),
    /// A call and its arguments so far.
    Call(Value, String),
}

pub(in crate::http) struct Events {
    id: String,
    number: u64,
    /// Index of the next or the open item.
    index: usize,
    open: Item,
}

impl Events {
    pub(in crate::http) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            number: 0,
            index: 0,
            open: Item::None,
        }
    }

    fn push(&mut self, out: &mut String, kind: &str, mut event: Value) {
        event["type"] = kind.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        out.push_str(&format!("event: {kind}\ndata: {event}\n\n"));
    }

    fn add(&mut self, out: &mut String, item: &Value) {
        let added = json!({ "output_index": self.index, "item": item });
        self.push(out, "response.output_item.added", added);
    }

    fn close(&mut self, out: &mut String) {
        let index = self.index;
        let item = match std::mem::replace(&mut self.open, Item::None) {
            Item::None => return,
            Item::Text(text) => {
                let id = item_id("msg", &self.id, index);
                let done = json!({
                    "item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": [],
                });
                self.push(out, "response.output_text.done", done);
                let part = text_part(&text);
                let done = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
                self.push(out, "response.content_part.done", done);
                text_item(&self.id, index, "completed", vec![part])
            }
            Item::Call(call, arguments) => {
                let done = json!({
                    "item_id": item_id("fc", &self.id, index), "output_index": index,
                    "name": call["function"]["name"], "arguments": arguments,
                });
                self.push(out, "response.function_call_arguments.done", done);
                call_item(&self.id, index, "completed", &call, &arguments)
            }
        };
        let done = json!({ "output_index": index, "item": item });
        self.push(out, "response.output_item.done", done);
        self.index += 1;
    }
}

impl Form for Events {
    fn open(&mut self, out: &mut String, shape: &Shape) {
        let begun = response(shape, "in_progress", Vec::new(), Value::Null);
        self.push(out, "response.created", json!({ "response": begun }));
        self.push(out, "response.in_progress", json!({ "response": begun }));
    }

    fn text(&mut self, out: &mut String, text: &str) {
        let id = item_id("msg", &self.id, self.index);
        if !matches!(self.open, Item::Text(_)) {
            self.close(out);
            self.open = Item::Text(String::new());
            let item = text_item(&self.id, self.index, "in_progress", Vec::new());
            self.add(out, &item);
            let part = text_part("");
            let added =
                json!({ "item_id": id, "output_index": self.index, "content_index": 0, "part": part });
            self.push(out, "response.content_part.added", added);
        }
        if let Item::Text(said) = &mut self.open {
            said.push_str(text);
        }
        let delta = json!({
            "item_id": id, "output_index": self.index, "content_index": 0, "delta": text, "logprobs": [],
        });
        self.push(out, "response.output_text.delta", delta);
    }

    fn calls(&mut self, out: &mut String, delta: &Value) {
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call["id"].is_string() {
                self.close(out);
                let item = call_item(&self.id, self.index, "in_progress", call, "");
                self.add(out, &item);
                self.open = Item::Call(call.clone(), String::new());
            }
            let more = call["function"]["arguments"].as_str().unwrap_or_default();
            if let Item::Call(_, arguments) = &mut self.open
                && !more.is_empty()
            {
                arguments.push_str(more);
                let id = item_id("fc", &self.id, self.index);
                let delta = json!({ "item_id": id, "output_index": self.index, "delta": more });
                self.push(out, "response.function_call_arguments.delta", delta);
            }
        }
    }

    fn finish(&mut self, out: &mut String, shape: &Shape, progress: &Progress) {
        self.close(out);
        let response = whole(shape, progress);
        self.push(out, "response.completed", json!({ "response": response }));
    }
}
