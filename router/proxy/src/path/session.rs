//! Identifies the conversation of a turn.
//!
//! The client's own name is used if there is one: `X-Session-ID`, body `session_id` or `prompt_cache_key`. Otherwise
//! the prompt identifies it: a turn begins with the whole prompt of the last one, whose last key is stored. Of several
//! conversations with that key, the first to continue keeps it; the others are named after the point of divergence.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderValue;
use policy::fingerprint::Chain;
use xxhash_rust::xxh3::xxh3_64;

use learning::knowledge::Knowledge;
use protocol::tenant::Tenant;
use telemetry::context::hex_of_half;

/// Longest name forwarded unchanged; longer ones are hashed.
const MAX_NAME_BYTES: usize = 256;

/// A turn's conversation.
#[derive(Clone, Debug)]
pub struct Session {
    /// The name sent to workers: visible ASCII, bounded.
    pub name: Arc<str>,
    /// Key of the conversation: the hash of the client's name, or a key found by the prompt.
    pub key: u64,
    /// Whether the request already carries the name in a header.
    pub in_header: bool,
}

impl Session {
    /// Finds the conversation of a turn; `None` if the turn has neither a name nor a known prompt. A name in the head
    /// is already scoped to the tenant ([`protocol::tenant::settle`]).
    pub fn of(
        tenant: Option<&Tenant>,
        in_head: Option<&HeaderValue>,
        in_body: Option<&str>,
        chain: &Chain,
        knowledge: &Knowledge,
    ) -> Option<Self> {
        let in_header = in_head.and_then(|name| name.to_str().ok());
        if let Some(name) = in_header.filter(|name| is_plain(name)) {
            return Some(Self {
                name: name.into(),
                key: xxh3_64(name.as_bytes()),
                in_header: true,
            });
        }
        if let Some(name) = in_header.or(in_body) {
            let name = match tenant {
                Some(tenant) => Cow::Owned(tenant.session(name.as_bytes())),
                None => Cow::Borrowed(name),
            };
            let key = xxh3_64(name.as_bytes());
            let name = if is_plain(&name) {
                (&*name).into()
            } else {
                derived_name(key)
            };
            return Some(Self {
                name,
                key,
                in_header: false,
            });
        }
        let key = knowledge.conversation(chain)?;
        Some(Self {
            name: derived_name(key),
            key,
            in_header: false,
        })
    }

    /// Returns the name as a header value.
    pub fn header_value(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.name).ok()
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_graphic())
}

fn derived_name(key: u64) -> Arc<str> {
    let mut name = *b"tr-0000000000000000";
    name[3..].copy_from_slice(&hex_of_half(key));
    str::from_utf8(&name).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use policy::fingerprint::ChainBuilder;
    use policy::units::{Millis, Tokens};

    use super::*;

    fn chain(messages: &[&str]) -> Chain {
        let mut builder = ChainBuilder::new("m", None);
        for text in messages {
            builder.begin_message("user");
            builder.push(text.as_bytes());
            builder.end_message();
        }
        builder.into_chain()
    }

    fn knowledge() -> Knowledge {
        Knowledge::new(1 << 20, &[(Tokens(1000), 16)], 0.25, Millis(60_000.0))
    }

    fn found(knowledge: &Knowledge, messages: &[&str]) -> Arc<str> {
        Session::of(None, None, None, &chain(messages), knowledge)
            .unwrap()
            .name
    }

    #[test]
    fn the_clients_name_comes_first_and_the_header_before_the_body() {
        let (knowledge, chain) = (knowledge(), chain(&["hi"]));
        let body = Session::of(None, None, Some("in-body"), &chain, &knowledge).unwrap();
        assert_eq!((&*body.name, body.in_header), ("in-body", false));
        let in_head = HeaderValue::from_static("in-header");
        let header = Session::of(None, Some(&in_head), Some("in-body"), &chain, &knowledge).unwrap();
        assert_eq!((&*header.name, header.in_header), ("in-header", true));
    }

    #[test]
    fn a_name_that_fits_no_header_is_hashed() {
        let (knowledge, chain) = (knowledge(), chain(&["hi"]));
        for name in ["two words", "naïve", &"x".repeat(300)] {
            let session = Session::of(None, None, Some(name), &chain, &knowledge).unwrap();
            assert!(session.name.starts_with("tr-"), "{name}");
            assert!(session.header_value().is_some());
        }
    }

    #[test]
    fn a_conversation_without_a_name_is_found_by_its_prompt() {
        let knowledge = knowledge();
        let first = found(&knowledge, &["be brief", "hi"]);
        let second = found(&knowledge, &["be brief", "hi", "hello", "go on"]);
        let third = found(&knowledge, &["be brief", "hi", "hello", "go on", "yes", "more"]);
        assert_eq!((&first, &second), (&second, &third));
        assert_ne!(found(&knowledge, &["be brief", "bye"]), first);
    }

    #[test]
    fn conversations_that_began_alike_part_where_their_prompts_do() {
        let knowledge = knowledge();
        let (a, b) = (found(&knowledge, &["hi"]), found(&knowledge, &["hi"]));
        assert_eq!(a, b, "nothing tells them apart yet");
        let (a2, b2) = (
            found(&knowledge, &["hi", "hello", "a"]),
            found(&knowledge, &["hi", "hello", "b"]),
        );
        assert_eq!(a2, a);
        assert_ne!(b2, a2);
        assert_eq!(found(&knowledge, &["hi", "hello", "b", "ok", "b3"]), b2);
        assert_eq!(found(&knowledge, &["hi", "hello", "a", "ok", "a3"]), a2);
    }

    #[test]
    fn neither_name_nor_prompt_is_no_conversation() {
        assert!(Session::of(None, None, None, &Chain::new(), &knowledge()).is_none());
    }
}
