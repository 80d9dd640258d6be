//! From a parsed prompt to its chain of prefix hashes, in the canonical form that [`policy::fingerprint`] fixes.

use std::num::NonZeroU32;

use policy::fingerprint::{Chain, ChainBuilder, Field, MediaDigest, push_token_blocks, token_root};

use super::parse::{Message, Parsed, Prompt};

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
    match &parsed.prompt {
        Prompt::None => Fingerprint {
            chain: Chain::new(),
            extent: Extent::Bytes(0),
            reply: None,
        },
        Prompt::Tokens(tokens) => {
            let mut chain = Chain::new();
            push_token_blocks(token_root(model, salt), tokens, TOKEN_KEY_TOKENS, &mut chain);
            Fingerprint {
                chain,
                extent: Extent::Tokens(tokens.len() as u64),
                reply: None,
            }
        }
        Prompt::Text(text) => {
            let mut builder = ChainBuilder::new(model, salt);
            builder.begin_prompt();
            builder.push(text.as_bytes());
            let reply = builder.reply();
            finish(builder, reply)
        }
        Prompt::Chat { tools, messages } => {
            let mut builder = ChainBuilder::new(model, salt);
            if !tools.is_empty() {
                builder.begin_message("tools");
                for tool in tools {
                    builder.field(Field::Tools);
                    builder.push(tool.as_bytes());
                }
            }
            for message in messages {
                push_message(&mut builder, message);
            }
            builder.end_message();
            let mut reply = builder.reply();
            reply.field(Field::Text);
            finish(builder, reply)
        }
    }
}

fn finish(mut builder: ChainBuilder, reply: ChainBuilder) -> Fingerprint {
    builder.end_message();
    let extent = Extent::Bytes(builder.bytes());
    Fingerprint {
        chain: builder.into_chain(),
        extent,
        reply: Some(reply),
    }
}

fn push_message(builder: &mut ChainBuilder, message: &Message<'_>) {
    builder.begin_message(&message.role);
    for piece in &message.pieces {
        if piece.field == Field::Image {
            builder.media(Field::Image, MediaDigest::of(piece.text.as_bytes()));
        } else {
            builder.field(piece.field);
            builder.push(piece.text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::parse::parse;
    use super::*;

    fn of(body: &Value) -> Fingerprint {
        fingerprint(&parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn the_next_turn_begins_with_this_turn_and_its_reply() {
        let long = "lorem ipsum ".repeat(100);
        let first = json!([{"role":"system","content":"be brief"},{"role":"user","content":long}]);
        let this = of(&json!({"model":"m","messages":first}));
        let mut reply = this.reply.unwrap();
        reply.push(b"dolor ");
        reply.push(b"sit");
        reply.end_message();
        let mut known = this.chain;
        known.extend_from(reply.chain());

        let mut messages = first.as_array().unwrap().clone();
        messages.push(json!({"role":"assistant","content":"dolor sit"}));
        messages.push(json!({"role":"user","content":"go on"}));
        let next = of(&json!({"model":"m","messages":messages}));
        assert_eq!(next.chain.hashes()[..known.len()], *known.hashes());
        assert_eq!(next.chain.span(known.len()), known.span(known.len()));
        assert!(next.chain.len() > known.len());
    }

    #[test]
    fn a_text_prompt_goes_on_through_its_completion() {
        let prompt = "a".repeat(1000);
        let this = of(&json!({"model":"m","prompt":prompt}));
        let mut reply = this.reply.unwrap();
        reply.push("b".repeat(500).as_bytes());
        let next = of(&json!({"model":"m","prompt":format!("{prompt}{}", "b".repeat(500))}));
        // Keys that are complete agree; this turn's short last chunk is not part of the next one's chain.
        assert_eq!(reply.chain().hashes()[0], next.chain.hashes()[3]);
    }

    #[test]
    fn models_and_salts_never_share_a_key() {
        let body = |model: &str, salt: Value| json!({"model":model,"cache_salt":salt,"messages":[{"role":"user","content":"x"}]});
        let keys: Vec<_> = [
            body("a", Value::Null),
            body("b", Value::Null),
            body("a", json!("s")),
        ]
        .iter()
        .map(|body| of(body).chain.last())
        .collect();
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
    }

    #[test]
    fn a_prompt_of_unknown_shape_has_no_keys() {
        let none = of(&json!({"messages":5}));
        assert!(none.chain.is_empty() && none.reply.is_none());
        assert_eq!(none.extent, Extent::Bytes(0));
    }
}
