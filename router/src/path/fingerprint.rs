//! From a parsed prompt to its chain of prefix hashes, in the canonical form that [`policy::fingerprint`] fixes.
//!
//! Strings are decoded straight from the body into the hash: no text is copied, and how the JSON was written (white
//! space, escapes, order of members around a message's role) does not reach the chain.

use std::borrow::Cow;
use std::num::NonZeroU32;

use policy::fingerprint::{Chain, ChainBuilder, Field, MediaHasher, push_token_blocks, token_root};

use super::json::{Malformed, Scanner, compact, elements, members, text};
use super::parse::Parsed;

/// Tokens per key of a prompt that comes as token ids.
const TOKEN_KEY_TOKENS: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A fingerprinted prompt.
#[derive(Debug)]
pub struct Fingerprint {
    /// Its keys.
    pub chain: Chain,
    /// What the chain's ends count, and how long the whole prompt is in it.
    pub extent: Extent,
    /// Hashes the reply as it passes, where a reply can be found again in the next turn.
    pub reply: Option<ChainBuilder>,
}

/// The length of a prompt, in what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Canonical bytes.
    Bytes(u64),
    /// Tokens.
    Tokens(u64),
}

/// Fingerprints a prompt. One that the router does not understand has no keys and no length.
#[must_use]
pub fn fingerprint(parsed: &Parsed<'_>) -> Fingerprint {
    let (model, salt) = (
        parsed.model.as_deref().unwrap_or_default(),
        parsed.cache_salt.as_deref(),
    );
    match (parsed.messages, parsed.prompt) {
        (Some(messages), _) => chat(ChainBuilder::new(model, salt), parsed.tools, messages),
        (None, Some(prompt)) => completion(model, salt, prompt),
        (None, None) => none(),
    }
}

fn none() -> Fingerprint {
    Fingerprint {
        chain: Chain::new(),
        extent: Extent::Bytes(0),
        reply: None,
    }
}

fn chat(mut builder: ChainBuilder, tools: Option<&[u8]>, messages: &[u8]) -> Fingerprint {
    for (at, tool) in tools.into_iter().flat_map(elements).enumerate() {
        if at == 0 {
            builder.begin_message("tools");
        }
        builder.field(Field::Tools);
        compact(tool, |piece| builder.push(piece));
    }
    // The span was checked when the body was parsed, so walking it cannot fail.
    let _ = Scanner::again(messages).array(|scanner| message(&mut builder, scanner));
    builder.end_message();
    let mut reply = builder.reply();
    reply.field(Field::Text);
    let extent = Extent::Bytes(builder.bytes());
    Fingerprint {
        chain: builder.into_chain(),
        extent,
        reply: Some(reply),
    }
}

/// `prompt`: a text, a list of token ids, or a list of one of these. Larger batches have no single prefix.
fn completion(model: &str, salt: Option<&str>, prompt: &[u8]) -> Fingerprint {
    let prompt = match (elements(prompt).next(), elements(prompt).nth(1)) {
        (Some(only), None) if only.starts_with(b"\"") || only.starts_with(b"[") => only,
        _ => prompt,
    };
    if prompt.starts_with(b"\"") {
        let mut builder = ChainBuilder::new(model, salt);
        builder.begin_prompt();
        push_string(prompt, |piece| builder.push(piece));
        // Taken before the end: the next request repeats prompt and completion as one text.
        let reply = builder.reply();
        builder.end_message();
        let extent = Extent::Bytes(builder.bytes());
        return Fingerprint {
            chain: builder.into_chain(),
            extent,
            reply: Some(reply),
        };
    }
    let id = |element: &[u8]| std::str::from_utf8(element).ok()?.parse::<u32>().ok();
    match elements(prompt).map(id).collect::<Option<Vec<u32>>>() {
        Some(tokens) if !tokens.is_empty() => {
            let mut chain = Chain::new();
            push_token_blocks(token_root(model, salt), &tokens, TOKEN_KEY_TOKENS, &mut chain);
            Fingerprint {
                chain,
                extent: Extent::Tokens(tokens.len() as u64),
                reply: None,
            }
        }
        _ => none(),
    }
}

/// A message: its role, then its other fields in the order of the request. Walked once where the role comes first.
fn message(builder: &mut ChainBuilder, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
    let start = scanner.clone();
    let mut begun = false;
    scanner.object(|scanner, key| {
        let of_message = matches!(&*key, "role" | "name" | "content" | "tool_calls" | "tool_call_id");
        if !begun && of_message {
            begun = true;
            builder.begin_message(&role(start.clone()));
        }
        match (&*key, scanner.peek()) {
            ("content", Some(b'"')) => {
                builder.field(Field::Text);
                scanner.string(|piece| builder.push(piece))
            }
            ("content", _) => scanner.array(|scanner| scanner.skip().map(|each| part(builder, each))),
            ("name", _) => scanner.skip().map(|value| field(builder, Field::Name, value)),
            ("tool_calls", _) => scanner.array(|scanner| scanner.skip().map(|call| tool_call(builder, call))),
            ("tool_call_id", _) => scanner.skip().map(|value| field(builder, Field::ToolId, value)),
            _ => scanner.skip().map(drop),
        }
    })
}

/// The role of the message that a scanner stands before. It is nearly always the first member.
fn role<'a>(mut scanner: Scanner<'a>) -> Cow<'a, str> {
    let mut role = Cow::Borrowed("");
    // Stopping early is an error to the scanner and none to us.
    let _ = scanner.object(|scanner, key| {
        let at = scanner.position();
        let value = scanner.skip()?;
        if key == "role" {
            role = text(value).unwrap_or_default();
            return Err(Malformed { at, what: "found" });
        }
        Ok(())
    });
    role
}

fn field(builder: &mut ChainBuilder, field: Field, value: &[u8]) {
    builder.field(field);
    push_string(value, |piece| builder.push(piece));
}

/// A content part: text, a medium, or something unknown.
fn part(builder: &mut ChainBuilder, part: &[u8]) {
    let member = |name: &str| members(part).find(|(key, _)| key == name).map(|(_, value)| value);
    let kind = member("type").and_then(text).unwrap_or_default();
    match &*kind {
        "text" | "input_text" | "output_text" => {
            field(builder, Field::Text, member("text").unwrap_or_default())
        }
        "image_url" | "input_image" => {
            let image = member("image_url").unwrap_or_default();
            let url = members(image)
                .find(|(key, _)| key == "url")
                .map_or(image, |(_, url)| url);
            let mut hasher = MediaHasher::new();
            push_string(url, |piece| hasher.push(piece));
            builder.media(Field::Image, hasher.digest());
        }
        "input_audio" | "audio_url" | "video_url" | "file" | "input_file" => {
            let mut hasher = MediaHasher::new();
            compact(part, |piece| hasher.push(piece));
            builder.media(Field::Media, hasher.digest());
        }
        _ => {
            builder.field(Field::Other);
            compact(part, |piece| builder.push(piece));
        }
    }
}

fn tool_call(builder: &mut ChainBuilder, call: &[u8]) {
    for (key, value) in members(call) {
        match &*key {
            "id" => field(builder, Field::ToolId, value),
            "function" => {
                let part = |name: &str| {
                    members(value)
                        .find(|(key, _)| key == name)
                        .map(|(_, value)| value)
                };
                field(builder, Field::ToolName, part("name").unwrap_or_default());
                field(
                    builder,
                    Field::ToolArguments,
                    part("arguments").unwrap_or_default(),
                );
            }
            _ => {}
        }
    }
}

/// The decoded bytes of a string value; anything else has none.
fn push_string(value: &[u8], piece: impl FnMut(&[u8])) {
    if value.starts_with(b"\"") {
        // The value was validated when the body was parsed.
        let _ = Scanner::again(value).string(piece);
    }
}

#[cfg(test)]
mod tests;
