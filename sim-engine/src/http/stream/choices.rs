//! The events of chat and plain completions: a role chunk, content, a finish chunk, usage if requested, `[DONE]`.

use serde_json::Value;

use crate::http::api::Api;
use crate::http::form::Form;
use crate::http::shape::Shape;
use crate::scheduler::Progress;

/// Formats events without a serialiser, because the chunks of a reply differ only in their text.
pub(super) struct Choices {
    chat: bool,
    /// `data: {"id":…,"choices":`, the same in every chunk.
    head: String,
}

impl Choices {
    pub(super) fn new(shape: &Shape) -> Self {
        let chat = shape.api == Api::Chat;
        let object = if chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let model = Value::from(shape.shared.config.model.as_str());
        let id = Value::from(shape.id.as_str());
        let created = shape.created;
        let head = format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":"
        );
        Self { chat, head }
    }

    fn choice(&self, out: &mut String, content: &str, finish: &str) {
        out.push_str(&self.head);
        out.push_str("[{\"index\":0,");
        out.push_str(content);
        out.push_str(",\"logprobs\":null,\"finish_reason\":");
        out.push_str(finish);
        out.push_str("}]}\n\n");
    }
}

impl Form for Choices {
    fn begin(&mut self, out: &mut String, _shape: &Shape) {
        if self.chat {
            let role = "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}";
            self.choice(out, role, "null");
        }
    }

    fn text(&mut self, out: &mut String, text: &str) {
        let content = if self.chat {
            format!("\"delta\":{{\"content\":\"{text}\"}}")
        } else {
            format!("\"text\":\"{text}\"")
        };
        self.choice(out, &content, "null");
    }

    fn calls(&mut self, out: &mut String, delta: &Value) {
        self.choice(out, &format!("\"delta\":{delta}"), "null");
    }

    fn finish(&mut self, out: &mut String, shape: &Shape, progress: &Progress) {
        let metrics = shape
            .metrics(progress)
            .map_or(String::new(), |metrics| format!(",\"metrics\":{metrics}"));
        let tiers = shape.tiers(progress);
        let metrics = metrics + &tiers.map_or(String::new(), |tiers| format!(",\"sglext\":{tiers}"));
        let content = if self.chat {
            "\"delta\":{\"content\":\"\"}"
        } else {
            "\"text\":\"\""
        };
        let finish = format!("\"{}\"", shape.reply.finish.name());
        self.choice(out, content, &finish);
        if shape.reply.include_usage {
            let usage = shape.usage(progress);
            out.push_str(&self.head);
            out.push_str(&format!("[],\"usage\":{usage}{metrics}}}\n\n"));
        } else if !metrics.is_empty() {
            // Without a usage chunk, the finish chunk carries the metrics.
            out.truncate(out.len() - "}\n\n".len());
            out.push_str(&format!("{metrics}}}\n\n"));
        }
        out.push_str("data: [DONE]\n\n");
    }
}
