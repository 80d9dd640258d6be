//! Tests the fingerprint against a naive reference. A generated chat is written as JSON in a random valid spelling and
//! parsed; the reference spells the chat itself with `serde_json`.

use policy::fingerprint::{ChainBuilder, MediaDigest, Medium};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::api::Endpoint;
use crate::parse::parse;

mod chat;
mod writer;

use chat::{Chat, Item, Part, audio, chat, compact, file, novel, rank_of, spelled};
use writer::Writer;

fn tell(twin: &mut ChainBuilder, field: Field, canonical: &str) {
    twin.field(field);
    twin.push(canonical.as_bytes());
}

fn tell_item(twin: &mut ChainBuilder, item: &Item) {
    match item {
        Item::Null => {}
        Item::Content(text) => tell(twin, Field::Text, &spelled(text)),
        Item::Parts(parts) => parts.iter().for_each(|part| match part {
            Part::Text(text) => tell(twin, Field::Text, &spelled(text)),
            Part::Image(url) => twin.media(
                Field::Image,
                Medium::Image,
                MediaDigest::of(spelled(url).as_bytes()),
            ),
            Part::Kept(uuid, _) => {
                let named = [b"\xFFimage\xFF", spelled(uuid).as_bytes()].concat();
                twin.media(Field::Image, Medium::Image, MediaDigest::of(&named));
            }
            Part::File(id) => twin.media(
                Field::Media,
                Medium::File,
                MediaDigest::of(compact(&file(id)).as_bytes()),
            ),
            Part::Audio(json) => twin.media(
                Field::Media,
                Medium::Audio,
                MediaDigest::of(compact(&audio(json)).as_bytes()),
            ),
            Part::Novel(json) => tell(twin, Field::Other, &compact(&novel(json))),
        }),
        Item::Name(name) => tell(twin, Field::Name, &spelled(name)),
        Item::AnswerTo(id) => tell(twin, Field::ToolId, &spelled(id)),
        Item::Reasoning(text) => tell(twin, Field::Reasoning, &spelled(text)),
        Item::Calls(calls) => calls.iter().for_each(|call| {
            let arguments = match &call.arguments {
                Ok(text) => spelled(text),
                Err(json) => compact(json),
            };
            tell(twin, Field::ToolArguments, &arguments);
            tell(twin, Field::ToolName, &spelled(&call.name));
            tell(
                twin,
                Field::ToolId,
                &spelled(call.id.as_deref().unwrap_or_default()),
            );
        }),
    }
}

/// Returns the salt for the root of the chain.
fn namespace(chat: &Chat) -> Option<String> {
    let given = [("0", &chat.salt), ("1", &chat.extra_key)];
    match given {
        [(_, Some(salt)), (_, None)] if !salt.starts_with('\0') => Some(salt.clone()),
        [(_, None), (_, None)] => None,
        _ => {
            let written = given.map(|(place, value)| match value {
                Some(value) => format!("\0{place}t{}:{value}", value.len()),
                None => String::new(),
            });
            Some(written.concat())
        }
    }
}

fn twin(chat: &Chat) -> ChainBuilder {
    let mut twin = ChainBuilder::new(&chat.model, namespace(chat).as_deref());
    if !chat.tools.is_empty() {
        twin.begin_message("tools");
    }
    chat.tools
        .iter()
        .for_each(|tool| tell(&mut twin, Field::Tools, &compact(tool)));
    for (role, items) in &chat.messages {
        twin.begin_message(role);
        for rank in [0, 1, 2] {
            let ranked = items.iter().filter(|item| rank_of(item) == rank);
            ranked.for_each(|item| tell_item(&mut twin, item));
        }
    }
    twin.end_message();
    twin
}

proptest! {
    #[test]
    fn a_fingerprint_is_of_what_is_said_and_not_of_how_it_is_written(chat in chat(), seed in any::<u64>()) {
        let body = Writer(Pcg64Mcg::seed_from_u64(seed)).chat(&chat);
        prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok(), "the test writes JSON: {}", body);
        let read = parse(Endpoint::Chat, body.as_bytes()).unwrap().fingerprint;
        let twin = twin(&chat);
        prop_assert_eq!(read.chain.hashes(), twin.chain().hashes(), "{}", body);
        prop_assert_eq!(read.chain.ends(), twin.chain().ends());
        prop_assert_eq!(read.extent, Extent::Bytes(twin.bytes()));
        let (mut reply, mut expected) = (read.reply.unwrap(), twin.reply());
        prop_assert_eq!((reply.parent(), reply.bytes()), (expected.parent(), expected.bytes()));
        for reply in [&mut reply, &mut expected] {
            reply.field(Field::Text);
            reply.push_text("and so on");
            reply.end_message();
        }
        prop_assert_eq!(reply.chain(), expected.chain());
    }
}
