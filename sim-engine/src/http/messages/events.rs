//! The events of a streamed message: `message_start`, those of each block, `message_delta`, `message_stop`. As in vLLM
//! the first event counts all prompt tokens as input, and `message_delta` says how many were cached.

use serde_json::{Value, json};

use super::{stop_reason, usage};
use crate::http::form::Form;
use crate::http::shape::Shape;
use crate::scheduler::Progress;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Block {
    #[default]
    None,
    Text,
    Call,
}

#[derive(Default)]
pub(in crate::http) struct Events {
    /// Index of the next or the open block.
    index: usize,
    open: Block,
}

impl Events {
    fn start(&mut self, out: &mut String, block: Block, content: &Value) {
        self.stop(out);
        self.open = block;
        let index = self.index;
        let start = json!({ "type": "content_block_start", "index": index, "content_block": content });
        push(out, "content_block_start", &start);
    }

    fn stop(&mut self, out: &mut String) {
        if self.open != Block::None {
            let stop = json!({ "type": "content_block_stop", "index": self.index });
            push(out, "content_block_stop", &stop);
            self.open = Block::None;
            self.index += 1;
        }
    }
}

impl Form for Events {
    fn begin(&mut self, out: &mut String, shape: &Shape) {
        let usage = json!({ "input_tokens": shape.reply.prompt_tokens, "output_tokens": 0 });
        let message = json!({
            "id": shape.id, "type": "message", "role": "assistant", "model": shape.shared.config.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        push(
            out,
            "message_start",
            &json!({ "type": "message_start", "message": message }),
        );
    }

    fn text(&mut self, out: &mut String, text: &str) {
        if self.open != Block::Text {
            self.start(out, Block::Text, &json!({ "type": "text", "text": "" }));
        }
        out.push_str("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
        out.push_str(&self.index.to_string());
        out.push_str(",\"delta\":{\"type\":\"text_delta\",\"text\":\"");
        out.push_str(text);
        out.push_str("\"}}\n\n");
    }

    fn calls(&mut self, out: &mut String, delta: &Value) {
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if let Some(id) = call["id"].as_str() {
                let name = &call["function"]["name"];
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.start(out, Block::Call, &block);
            }
            let partial = &call["function"]["arguments"];
            if partial != "" {
                let delta = json!({
                    "type": "content_block_delta", "index": self.index,
                    "delta": { "type": "input_json_delta", "partial_json": partial },
                });
                push(out, "content_block_delta", &delta);
            }
        }
    }

    fn finish(&mut self, out: &mut String, shape: &Shape, progress: &Progress) {
        self.stop(out);
        let delta = json!({
            "type": "message_delta", "usage": usage(shape, progress),
            "delta": { "stop_reason": stop_reason(shape), "stop_sequence": null },
        });
        push(out, "message_delta", &delta);
        push(out, "message_stop", &json!({ "type": "message_stop" }));
    }
}

fn push(out: &mut String, kind: &str, event: &Value) {
    out.push_str(&format!("event: {kind}\ndata: {event}\n\n"));
}
