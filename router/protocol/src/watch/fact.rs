//! A member of a response's JSON of which only text matters.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::reply::Piece;

#[derive(Default)]
pub(crate) enum StreamFact<'a> {
    /// An absent member, `null`, or an empty string or list.
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    Else,
}

impl StreamFact<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self, Self::Text(said) if said == text)
    }

    /// Returns the member as a piece of the reply, if it has content.
    pub(crate) fn piece<'b>(&'b self, read: impl FnOnce(&'b str) -> Piece<'b>) -> Option<Piece<'b>> {
        match self {
            Self::Nothing => None,
            Self::Text(text) => Some(read(text)),
            Self::Else => Some(Piece::Unrepeated),
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Nothing => Some(""),
            Self::Text(text) => Some(text),
            Self::Else => None,
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
