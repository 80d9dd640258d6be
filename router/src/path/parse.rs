//! One pass over the body: `model`, `stream`, session fields, and the pieces of the prompt in canonical order.
//!
//! The bytes are looked at and forwarded as they came; nothing is written again. Unknown fields, roles and content
//! parts pass through unread: validating the API is the worker's business. So there are three outcomes:
//!
//! - not JSON at all: refused with 400, because no worker could do better;
//! - JSON of an unexpected shape (`"messages": 5`): passed on without a fingerprint, and the worker says what is wrong;
//! - else: a [`Parsed`] that borrows from the body wherever JSON escapes allow.
//!
//! The canonical prompt, from which fingerprints are made, does not depend on JSON formatting, escapes, or the order
//! of fields: string content is the same as one text part, absent content the same as `null`.

use std::borrow::Cow;

use policy::fingerprint::Field;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// What the router needs to know of a request's body.
#[derive(Debug, Default)]
pub struct Parsed<'a> {
    /// The model's name, if given.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The conversation's name, if the client gives one in the body.
    pub session: Option<Cow<'a, str>>,
    /// Separates tenants' caches: part of the fingerprint.
    pub cache_salt: Option<Cow<'a, str>>,
    /// The prompt.
    pub prompt: Prompt<'a>,
}

/// A prompt in one of the forms that engines take.
#[derive(Debug, Default)]
pub enum Prompt<'a> {
    /// None that the router understands.
    #[default]
    None,
    /// `/v1/chat/completions`: tool definitions, then messages.
    Chat {
        /// Each tool's definition, as JSON with sorted keys and no white space.
        tools: Vec<String>,
        /// The messages in order.
        messages: Vec<Message<'a>>,
    },
    /// `/v1/completions` with text.
    Text(Cow<'a, str>),
    /// `/v1/completions` with token ids.
    Tokens(Vec<u32>),
}

/// One message, reduced to what reaches the model.
#[derive(Debug, Default, PartialEq)]
pub struct Message<'a> {
    /// `system`, `user`, `assistant`, `tool`, …
    pub role: Cow<'a, str>,
    /// The fields that follow the role, in canonical order.
    pub pieces: Vec<Piece<'a>>,
}

/// One field of a message: what it is, and its decoded text.
#[derive(Debug, PartialEq)]
pub struct Piece<'a> {
    /// What it is.
    pub field: Field,
    /// Decoded text; for an image its URL or data URL, for other parts their canonical JSON.
    pub text: Cow<'a, str>,
}

impl<'a> Piece<'a> {
    fn new(field: Field, text: impl Into<Cow<'a, str>>) -> Self {
        Self {
            field,
            text: text.into(),
        }
    }
}

/// Reads a request body.
///
/// # Errors
/// [`ApiError::MalformedJson`] if the body is not JSON.
pub fn parse(body: &[u8]) -> Result<Parsed<'_>, ApiError> {
    match serde_json::from_slice::<Fields<'_>>(body) {
        Ok(fields) => Ok(fields.into_parsed()),
        // The right syntax in a shape we do not know: look for no more than the fields that stand alone.
        Err(error) if error.is_data() => match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => Ok(loose(body)),
            Err(error) => Err(ApiError::MalformedJson(error.to_string())),
        },
        Err(error) => Err(ApiError::MalformedJson(error.to_string())),
    }
}

/// `model` and `stream` of a body whose other fields have shapes that the router does not know.
fn loose(body: &[u8]) -> Parsed<'_> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
        stream: Option<bool>,
    }
    serde_json::from_slice::<Head<'_>>(body)
        .map(|head| Parsed {
            model: head.model,
            stream: head.stream.unwrap_or(false),
            ..Parsed::default()
        })
        .unwrap_or_default()
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(borrow, default)]
    messages: Option<Vec<WireMessage<'a>>>,
    #[serde(borrow, default)]
    prompt: Option<WirePrompt<'a>>,
    #[serde(borrow, default)]
    tools: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    prompt_cache_key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    cache_salt: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> {
    fn into_parsed(self) -> Parsed<'a> {
        let prompt = match (self.messages, self.prompt) {
            (Some(messages), _) => Prompt::Chat {
                tools: self
                    .tools
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(canonical)
                    .collect(),
                messages: messages.into_iter().map(WireMessage::canonical).collect(),
            },
            (None, Some(WirePrompt::Text(text))) => Prompt::Text(text),
            (None, Some(WirePrompt::Tokens(tokens))) => Prompt::Tokens(tokens),
            (None, Some(WirePrompt::Other) | None) => Prompt::None,
        };
        Parsed {
            model: self.model,
            stream: self.stream.unwrap_or(false),
            session: self
                .session_id
                .or(self.prompt_cache_key)
                .filter(|name| !name.is_empty()),
            cache_salt: self.cache_salt,
            prompt,
        }
    }
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(borrow, default)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow, default)]
    tool_call_id: Option<Cow<'a, str>>,
}

impl<'a> WireMessage<'a> {
    fn canonical(self) -> Message<'a> {
        let mut pieces = Vec::with_capacity(1);
        pieces.extend(self.name.map(|name| Piece::new(Field::Name, name)));
        match self.content {
            Some(Content::Text(text)) => pieces.push(Piece::new(Field::Text, text)),
            Some(Content::Parts(parts)) => pieces.extend(parts),
            None => {}
        }
        for call in self.tool_calls.unwrap_or_default() {
            pieces.extend(call.id.map(|id| Piece::new(Field::ToolId, id)));
            let function = call.function.unwrap_or_default();
            pieces.extend(function.name.map(|name| Piece::new(Field::ToolName, name)));
            pieces.extend(
                function
                    .arguments
                    .map(|arguments| Piece::new(Field::ToolArguments, arguments)),
            );
        }
        pieces.extend(self.tool_call_id.map(|id| Piece::new(Field::ToolId, id)));
        Message {
            role: self.role.unwrap_or_default(),
            pieces,
        }
    }
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Default, Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<Cow<'a, str>>,
}

/// JSON without white space and with sorted keys; `null` is the same as absent.
fn canonical(raw: &RawValue) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(raw.get()).ok()?;
    if value.is_null() {
        None
    } else {
        Some(value.to_string())
    }
}

/// A message's content: a string, or parts.
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Piece<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of content parts")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element::<Part<'de>>()? {
                    parts.push(part.0);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// One content part: text if it says so, else whatever JSON it is.
struct Part<'a>(Piece<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct KnownPart<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
            #[serde(borrow, default)]
            text: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            image_url: Option<ImageUrl<'a>>,
        }
        #[derive(Deserialize)]
        struct ImageUrl<'a> {
            #[serde(borrow)]
            url: Cow<'a, str>,
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        let piece = match serde_json::from_str::<KnownPart<'de>>(raw.get()) {
            Ok(KnownPart {
                kind,
                text: Some(text),
                ..
            }) if kind.ends_with("text") => Piece::new(Field::Text, text),
            Ok(KnownPart {
                image_url: Some(image),
                ..
            }) => Piece::new(Field::Image, image.url),
            _ => Piece::new(Field::Other, canonical(raw).unwrap_or_default()),
        };
        Ok(Self(piece))
    }
}

/// `prompt` of `/v1/completions`. Batches (several prompts in one request) carry no single prefix: `Other`.
enum WirePrompt<'a> {
    Text(Cow<'a, str>),
    Tokens(Vec<u32>),
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for WirePrompt<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PromptVisitor;
        impl<'de> Visitor<'de> for PromptVisitor {
            type Value = WirePrompt<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a prompt")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(WirePrompt::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(WirePrompt::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let (mut tokens, mut texts, mut others) = (Vec::new(), Vec::new(), false);
                while let Some(item) = seq.next_element::<PromptItem<'de>>()? {
                    match item {
                        PromptItem::Token(id) => tokens.push(id),
                        PromptItem::Text(text) => texts.push(text),
                        PromptItem::Other => others = true,
                    }
                }
                Ok(match (others, tokens.is_empty(), texts.len()) {
                    (false, false, 0) => WirePrompt::Tokens(tokens),
                    (false, true, 1) => texts.pop().map_or(WirePrompt::Other, WirePrompt::Text),
                    _ => WirePrompt::Other,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(WirePrompt::Other)
            }
        }
        deserializer.deserialize_any(PromptVisitor)
    }
}

/// One element of a `prompt` list.
enum PromptItem<'a> {
    Token(u32),
    Text(Cow<'a, str>),
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for PromptItem<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemVisitor;
        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = PromptItem<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a token id, a text or a list of token ids")
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Self::Value, E> {
                Ok(u32::try_from(id).map_or(PromptItem::Other, PromptItem::Token))
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(PromptItem::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(PromptItem::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(PromptItem::Other)
            }
        }
        deserializer.deserialize_any(ItemVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn chat(body: &str) -> Vec<Message<'_>> {
        match parse(body.as_bytes()).unwrap().prompt {
            Prompt::Chat { messages, .. } => messages,
            other => panic!("not a chat: {other:?}"),
        }
    }

    #[test]
    fn string_content_is_the_same_as_one_text_part() {
        let string = chat(r#"{"messages":[{"role":"user","content":"hi \u00e9"}]}"#);
        let parts =
            chat(r#"{ "messages": [ {"content": [{"text":"hi é", "type":"text"}], "role": "user"} ] }"#);
        assert_eq!(string, parts);
    }

    #[test]
    fn null_content_is_the_same_as_none() {
        let null = chat(
            r#"{"messages":[{"role":"assistant","content":null,
                "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 2}"}}]}]}"#,
        );
        let none = chat(
            r#"{"messages":[{"role":"assistant",
                "tool_calls":[{"function":{"arguments":"{\"a\": 2}","name":"f"}, "id":"1"}]}]}"#,
        );
        assert_eq!(null, none);
        let fields: Vec<_> = null[0]
            .pieces
            .iter()
            .map(|piece| (piece.field, &*piece.text))
            .collect();
        assert_eq!(
            fields,
            [
                (Field::ToolId, "1"),
                (Field::ToolName, "f"),
                (Field::ToolArguments, "{\"a\": 2}")
            ]
        );
    }

    #[test]
    fn other_parts_are_told_apart_by_their_content() {
        let image = |url: &str| {
            let body = json!({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":url}}]}]});
            format!("{:?}", chat(&body.to_string()))
        };
        assert_ne!(image("data:a"), image("data:b"));
    }

    #[test]
    fn unescaped_text_is_borrowed_from_the_body() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"plain"}]}"#;
        let messages = chat(body);
        assert!(matches!(
            messages[0].pieces[0],
            Piece {
                field: Field::Text,
                text: Cow::Borrowed("plain")
            }
        ));
    }

    #[test]
    fn unknown_shapes_pass_without_a_prompt_but_keep_model_and_stream() {
        let parsed = parse(br#"{"model":"m","stream":true,"messages":5}"#).unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("m"), true));
        assert!(matches!(parsed.prompt, Prompt::None));
        assert!(matches!(parse(b"[1,2]").unwrap().prompt, Prompt::None));
        assert!(parse(br#"{"model":7}"#).unwrap().model.is_none());
    }

    #[test]
    fn what_is_not_json_is_refused_with_the_place() {
        for body in ["", "{", "{\"a\":}", "nope", "{\"messages\":[{]}", "{} trailing"] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("line 1 column"), "{body}: {error}");
        }
        assert!(parse(b"{\"model\":\"\xff\"}").is_err());
        assert!(parse(b"{\"messages\":5,\"model\":}").is_err());
    }

    #[test]
    fn completions_take_text_or_tokens_and_batches_have_no_prefix() {
        let prompt = |body: &str| format!("{:?}", parse(body.as_bytes()).unwrap().prompt);
        assert_eq!(prompt(r#"{"prompt":"hi"}"#), r#"Text("hi")"#);
        assert_eq!(prompt(r#"{"prompt":["hi"]}"#), r#"Text("hi")"#);
        assert_eq!(prompt(r#"{"prompt":[1,2]}"#), "Tokens([1, 2])");
        assert_eq!(prompt(r#"{"prompt":["a","b"]}"#), "None");
        assert_eq!(prompt(r#"{"prompt":[[1],[2]]}"#), "None");
        assert_eq!(prompt(r#"{"prompt":{"x":1}}"#), "None");
    }

    #[test]
    fn a_session_is_named_by_either_field_and_an_empty_name_is_none() {
        let session = |body: &'static str| parse(body.as_bytes()).unwrap().session.map(Cow::into_owned);
        assert_eq!(
            session(r#"{"session_id":"a","prompt_cache_key":"b"}"#).as_deref(),
            Some("a")
        );
        assert_eq!(session(r#"{"prompt_cache_key":"b"}"#).as_deref(), Some("b"));
        assert_eq!(session(r#"{"session_id":""}"#), None);
    }

    #[test]
    fn nesting_beyond_reason_is_no_crash() {
        let nested = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
        for field in ["messages", "prompt", "tools", "model", "whatever"] {
            for value in [nested("[", "]"), nested("{\"a\":", "}").replace(":}", ":1}")] {
                let body = format!("{{\"{field}\":{value}}}");
                let _ = parse(body.as_bytes());
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }

        #[test]
        fn formatting_and_escapes_do_not_matter(texts in prop::collection::vec(any::<String>(), 0..5)) {
            let messages: Vec<_> = texts.iter().map(|text| json!({"role":"user","content":text})).collect();
            let value = json!({"model":"m","messages":messages});
            let compact = value.to_string();
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let escaped: String = compact
                .chars()
                .map(|c| if c.is_ascii() { c.to_string() } else {
                    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
                })
                .collect();
            prop_assert_eq!(chat(&compact), chat(&pretty));
            prop_assert_eq!(chat(&compact), chat(&escaped));
        }
    }
}
