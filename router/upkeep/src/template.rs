//! Measures the tokens that a model's chat template puts between a reply and the user's next message.
//!
//! Two conversations that part after a reply still share the template's tokens that follow it (`<|im_end|>`, a line
//! break, `<|im_start|>user` …), which text keys do not cover. Engines with `POST /tokenize` (vLLM) are queried once
//! per model for three short chats; elsewhere the same is learned from reports that differ by a block. Of the chats
//! `u/a/v`, `u/a/w` and `u/b/v` the first two part where the second user's text begins, and the first and the third
//! differ only in the reply: what lies between is the template's.

use http::Method;
use serde_json::{Value, json};
use tracing::debug;

use fleet::Worker;
use state::State;
use state::control;

const MODELS: usize = 8;

/// Measures the listed models whose template is unknown.
pub(super) async fn learn(state: &State, worker: &Worker, models: &[String]) {
    for model in models.iter().take(MODELS) {
        if state.routing.knowledge.knows_template(model) {
            continue;
        }
        let Some(gap) = ask(state, worker, model).await else {
            debug!(
                worker = worker.name(),
                model, "cannot measure the model's template"
            );
            return;
        };
        debug!(
            worker = worker.name(),
            model, gap, "template measured: tokens after a reply"
        );
        state.routing.knowledge.template(model, gap);
    }
}

async fn ask(state: &State, worker: &Worker, model: &str) -> Option<u64> {
    let first = tokens(state, worker, model, "a", "v").await?;
    let other_user = tokens(state, worker, model, "a", "7 w").await?;
    let other_reply = tokens(state, worker, model, "b", "v").await?;
    gap(&first, &other_user, &other_reply)
}

async fn tokens(state: &State, worker: &Worker, model: &str, reply: &str, next: &str) -> Option<Vec<u64>> {
    let message = |role, content| json!({ "role": role, "content": content });
    let chat = json!({
        "model": model, "add_generation_prompt": true,
        "messages": [message("user", "u"), message("assistant", reply), message("user", next)],
    });
    let answer = control::call(&state.transport, worker, Method::POST, "/tokenize", Some(&chat))
        .await
        .ok()?;
    let answer: Value = serde_json::from_slice(&answer).ok()?;
    answer["tokens"].as_array()?.iter().map(Value::as_u64).collect()
}

fn gap(first: &[u64], other_user: &[u64], other_reply: &[u64]) -> Option<u64> {
    let shared = |other: &[u64]| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    let user_begins = shared(other_user);
    let reply_begins = shared(other_reply);
    let same_end = first
        .iter()
        .rev()
        .zip(other_reply.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let reply_ends = first.len().checked_sub(same_end)?;
    if reply_ends <= reply_begins {
        return None;
    }
    user_begins.checked_sub(reply_ends).map(|gap| gap as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_template_puts_between_reply_and_user_is_counted() {
        // As vLLM tokenised them with a ChatML template: one reply token, then seven template tokens.
        let chat = |reply, next: &[u64]| {
            let head: &[u64] = &[
                1, 87, 311, 84, 201, 67, 2, 201, 1, 67, 85, 331, 85, 357, 80, 86, 201,
            ];
            let between: &[u64] = &[2, 201, 1, 87, 311, 84, 201];
            let end: &[u64] = &[2, 201, 1, 67, 85, 331, 85, 357, 80, 86, 201];
            [head, &[reply], between, next, end].concat()
        };
        let first = chat(68, &[69]);
        assert_eq!(gap(&first, &chat(68, &[25, 260]), &chat(71, &[69])), Some(7));
        // A reply that the template drops, and one whose tokens merge with the template's.
        assert_eq!(gap(&first, &chat(68, &[25, 260]), &first), None);
        assert_eq!(gap(&first, &first[..17], &chat(71, &[69])), None);
        assert_eq!(gap(&[], &[], &[]), None);
    }
}
