//! Unstreamed replies.

use serde_json::{Value, json};

use super::api::Api;
use super::shape::Shape;
use super::{messages, responses};
use crate::scheduler::Progress;

pub(super) fn reply(shape: &Shape, progress: &Progress) -> Value {
    match shape.api {
        Api::Chat | Api::Completions => completion(shape, progress),
        Api::Messages => messages::whole(shape, progress),
        Api::Responses => responses::whole(shape, progress),
    }
}

fn completion(shape: &Shape, progress: &Progress) -> Value {
    let message = shape.message(progress);
    let finish = shape.reply.finish.name();
    let (object, choice) = if shape.api == Api::Chat {
        let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish });
        ("chat.completion", choice)
    } else {
        (
            "text_completion",
            json!({ "index": 0, "text": message["content"], "logprobs": null, "finish_reason": finish }),
        )
    };
    let mut answer = json!({
        "id": shape.id, "object": object, "created": shape.created, "model": shape.shared.config.model,
        "choices": [choice], "usage": shape.usage(progress),
    });
    if let Some(metrics) = shape.metrics(progress) {
        answer["metrics"] = metrics;
    }
    if let Some(tiers) = shape.tiers(progress) {
        answer["sglext"] = tiers;
    }
    answer
}
