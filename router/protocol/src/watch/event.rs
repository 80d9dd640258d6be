//! Wire format of an event or a whole response, of OpenAI's chat and completions.

use std::borrow::Cow;
use std::fmt;

use policy::units::Millis;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{MAX_TOKENS, Usage};
use crate::reply::Piece;

#[derive(Deserialize)]
pub(super) struct CompletionEvent<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Vec<CompletionChoice<'a>>,
    #[serde(default)]
    pub(super) usage: Option<WireUsage>,
    #[serde(default)]
    pub(super) metrics: Option<WireTimes>,
    #[serde(default)]
    pub(super) error: Option<IgnoredAny>,
}

/// Metrics of vLLM's `--enable-per-request-metrics`.
#[derive(Deserialize)]
pub(super) struct WireTimes {
    #[serde(default)]
    time_to_first_token_ms: Option<f64>,
    #[serde(default)]
    queue_time_ms: Option<f64>,
}

impl WireTimes {
    /// Returns the time from the start of prefill to the first token.
    pub(super) fn prefill(&self) -> Option<Millis> {
        let took = self.time_to_first_token_ms? - self.queue_time_ms?;
        (took.is_finite() && took >= 0.0).then_some(Millis(took))
    }

    /// Returns the time from arrival to the start of prefill.
    pub(super) fn queue(&self) -> Option<Millis> {
        let waited = self.queue_time_ms?;
        (waited.is_finite() && waited >= 0.0).then_some(Millis(waited))
    }
}

#[derive(Deserialize)]
pub(super) struct CompletionChoice<'a> {
    #[serde(default)]
    pub(super) index: u64,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) text: StreamFact<'a>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: StreamFact<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<ToolCallDelta<'a>>>,
    #[serde(borrow, default)]
    pub(super) function_call: Option<ToolCallDelta<'a>>,
    #[serde(borrow, default)]
    reasoning: StreamFact<'a>,
    #[serde(borrow, default)]
    reasoning_content: StreamFact<'a>,
    #[serde(borrow, default)]
    refusal: StreamFact<'a>,
    #[serde(default)]
    audio: Option<IgnoredAny>,
}

impl Delta<'_> {
    /// Returns the reasoning: the member `reasoning` in vLLM, `reasoning_content` in older versions and SGLang; some
    /// send both.
    pub(super) fn reasoning(&self) -> &StreamFact<'_> {
        match self.reasoning {
            StreamFact::Nothing => &self.reasoning_content,
            _ => &self.reasoning,
        }
    }

    /// Returns whether the delta has content that the next prompt does not repeat verbatim.
    pub(super) fn is_more(&self) -> bool {
        self.audio.is_some() || !matches!(self.refusal, StreamFact::Nothing)
    }
}

#[derive(Default)]
pub(super) enum StreamFact<'a> {
    /// An absent member, `null`, or an empty string or list.
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    Else,
}

impl StreamFact<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self, Self::Text(said) if said == text)
    }

    /// Returns the member as a piece of the reply, if it has content.
    pub(super) fn piece<'b>(&'b self, read: impl FnOnce(&'b str) -> Piece<'b>) -> Option<Piece<'b>> {
        match self {
            Self::Nothing => None,
            Self::Text(text) => Some(read(text)),
            Self::Else => Some(Piece::Unrepeated),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Nothing => Some(""),
            Self::Text(text) => Some(text),
            Self::Else => None,
        }
    }
}

/// A fragment of a call, also in the older form without `function`.
#[derive(Deserialize)]
pub(super) struct ToolCallDelta<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    id: StreamFact<'a>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
    #[serde(borrow, default)]
    name: StreamFact<'a>,
    #[serde(borrow, default)]
    arguments: StreamFact<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: StreamFact<'a>,
    #[serde(borrow, default)]
    arguments: StreamFact<'a>,
}

impl ToolCallDelta<'_> {
    /// Returns the fragment; [`Piece::Unrepeated`] unless all its members are text.
    pub(super) fn piece(&self, index: Option<u64>) -> Piece<'_> {
        let inner = self.function.as_ref().filter(|_| index.is_some());
        let (name, arguments) = inner.map_or((&self.name, &self.arguments), |inner| {
            (&inner.name, &inner.arguments)
        });
        let texts = (self.id.text(), name.text(), arguments.text());
        match texts {
            (Some(id), Some(name), Some(arguments)) => Piece::Call {
                index,
                id,
                name,
                arguments,
            },
            _ => Piece::Unrepeated,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for StreamFact<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = StreamFact<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, best of all")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(match text {
                    "" => StreamFact::Nothing,
                    text => StreamFact::Text(Cow::Borrowed(text)),
                })
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(match text {
                    "" => StreamFact::Nothing,
                    text => StreamFact::Text(Cow::Owned(text.to_owned())),
                })
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(StreamFact::Nothing)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(StreamFact::Else)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(StreamFact::Else)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(StreamFact::Else)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(StreamFact::Else)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut said = StreamFact::Nothing;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    said = StreamFact::Else;
                }
                Ok(said)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(StreamFact::Else)
            }
        }
        from.deserialize_any(Any)
    }
}

#[derive(Deserialize)]
pub(super) struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<WireDetails>,
}

#[derive(Deserialize)]
struct WireDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

impl From<WireUsage> for Usage {
    fn from(wire: WireUsage) -> Self {
        let details = wire.prompt_tokens_details;
        Self {
            prompt: wire.prompt_tokens.min(MAX_TOKENS),
            completion: wire.completion_tokens.min(MAX_TOKENS),
            cached: details
                .and_then(|details| details.cached_tokens)
                .map(|cached| cached.min(MAX_TOKENS)),
        }
    }
}
