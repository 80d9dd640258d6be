//! SGLang's own API, `/generate`: a text or token ids, bounds in `sampling_params`, and events with the engine's counts.
//!
//! An event has the whole text so far, or only the next piece with `--incremental-streaming-output`. Text that begins
//! with the previous text is taken as the whole. A piece may do so by chance; its reply is then learned short.

use policy::estimate::Finish;
use serde::Deserialize;

use super::{EndpointFacts, GenAiOperation, NestedBounds, Work, parsed};
use crate::fingerprint::Draft;
use crate::json::{Malformed, Scanner};
use crate::reply::Piece;
use crate::watch::{StreamFact, Usage, Watch};

/// Maximum size in bytes of the text that is kept to find the new part; a longer reply is not learned.
const MAX_TEXT_BYTES: usize = 1 << 20;

pub(super) const ENDPOINT: EndpointFacts = EndpointFacts {
    nested_bounds: Some(NestedBounds {
        member: "sampling_params",
        tokens: "max_new_tokens",
        choices: "n",
    }),
    ..EndpointFacts::new(
        "generate",
        &["/generate"],
        Work::Generation(GenAiOperation::TextCompletion),
    )
};

pub(super) fn read_prompt(
    member: &[u8],
    scanner: &mut Scanner<'_>,
    draft: &mut Draft,
) -> Result<bool, Malformed> {
    match member {
        // The one that is absent or null is not the prompt.
        b"text" | b"input_ids" if scanner.peek() != Some(b'n') => draft.prompt(scanner)?,
        b"tools" => draft.tools(scanner)?,
        _ => return Ok(false),
    }
    Ok(true)
}

#[derive(Deserialize)]
struct GenerateEvent<'a> {
    #[serde(borrow, default)]
    text: StreamFact<'a>,
    #[serde(borrow, default)]
    meta_info: Option<Meta<'a>>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    cached_tokens: Option<u64>,
    #[serde(borrow, default)]
    finish_reason: Option<FinishReason<'a>>,
}

#[derive(Deserialize)]
struct FinishReason<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: StreamFact<'a>,
}

pub(super) fn read_response(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    if json.trim_ascii_start().first() == Some(&b'[') {
        // One response per prompt of a batch.
        watch.several = true;
        watch.passed.said += json.len() as u64;
        reply(Piece::Unrepeated);
        watch.saw_token();
        return;
    }
    let Some(event) = parsed::<GenerateEvent<'_>>(json) else {
        reply(Piece::Unrepeated);
        return;
    };
    if let Some(meta) = event.meta_info {
        let [prompt, completion] =
            [meta.prompt_tokens, meta.completion_tokens].map(Option::unwrap_or_default);
        watch.usage = Some(Usage::reported(prompt, completion, meta.cached_tokens));
        if let Some(reason) = meta.finish_reason {
            watch.finished = true;
            watch.finish = match &reason.kind {
                kind if kind.is("stop") => Finish::Stop,
                kind if kind.is("length") => Finish::Length,
                _ => Finish::Other,
            };
        }
    }
    match &event.text {
        StreamFact::Text(text) => {
            match text.strip_prefix(&*watch.text) {
                Some("") => {}
                Some(new) => reply(Piece::Text(new)),
                None => reply(Piece::Text(text)),
            }
            if watch.text.len() + text.len() > MAX_TEXT_BYTES {
                reply(Piece::Unrepeated);
            } else if text.starts_with(&*watch.text) {
                watch.text.clear();
                watch.text.push_str(text);
            } else {
                watch.text.push_str(text);
            }
            watch.saw_token();
        }
        StreamFact::Else => {
            reply(Piece::Unrepeated);
            watch.saw_token();
        }
        StreamFact::Nothing => {}
    }
}
