//! OpenAI's completions, `/v1/completions`. A response is a chat's, with a choice's `text` in place of its message.

use super::{EndpointFacts, GenAiOperation, Work};
use crate::fingerprint::Draft;
use crate::json::{Malformed, Scanner};

pub(super) use super::openai_chat::read_response;

pub(super) const ENDPOINT: EndpointFacts = EndpointFacts {
    takes_fields: true,
    is_ended_by_done: true,
    ..EndpointFacts::new(
        "completions",
        &["/v1/completions"],
        Work::Generation(GenAiOperation::TextCompletion),
    )
};

pub(super) fn read_prompt(
    member: &[u8],
    scanner: &mut Scanner<'_>,
    draft: &mut Draft,
) -> Result<bool, Malformed> {
    match member {
        b"prompt" => draft.prompt(scanner)?,
        b"tools" => draft.tools(scanner)?,
        _ => return Ok(false),
    }
    Ok(true)
}
