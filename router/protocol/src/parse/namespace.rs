//! Members of a body that divide an engine's cache: prompts of two namespaces never share a block.
//!
//! vLLM divides its cache by `cache_salt`; SGLang by `cache_salt`, `extra_key` and the adapter. The root of a
//! fingerprint takes one salt: a lone `cache_salt` unchanged, otherwise a NUL-prefixed list of tagged, length-prefixed
//! values, so that no two namespaces collide. A salt that begins with NUL is encoded as a list, too.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Malformed, Scanner, text};

const MEMBERS: [&[u8]; 4] = [b"cache_salt", b"extra_key", b"lora_path", b"lora_name"];

const LIST: char = '\0';

/// Values of [`MEMBERS`]. Absent and `null` are the same, as in engines; an empty text is a value.
#[derive(Debug, Default)]
pub(super) struct Namespace<'a>([Option<NamespaceValue<'a>>; MEMBERS.len()]);

#[derive(Debug)]
pub(super) enum NamespaceValue<'a> {
    Text(Cow<'a, str>),
    /// Any other value (SGLang accepts lists), without insignificant white space.
    Json(String),
}

impl<'a> NamespaceValue<'a> {
    pub(super) fn read(scanner: &mut Scanner<'a>) -> Result<Option<Self>, Malformed> {
        Ok(match scanner.peek() {
            Some(b'n') => scanner.skip().map(|_| None)?,
            Some(b'"') => text(scanner)?.map(NamespaceValue::Text),
            _ => {
                let mut json = Vec::new();
                scanner.compact(&mut |bytes: &[u8]| json.extend_from_slice(bytes))?;
                Some(NamespaceValue::Json(String::from_utf8_lossy(&json).into_owned()))
            }
        })
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            NamespaceValue::Text(text) => text,
            NamespaceValue::Json(json) => json,
        }
    }

    pub(super) fn name(self) -> Option<Cow<'a, str>> {
        match self {
            NamespaceValue::Text(text) => Some(text).filter(|text| !text.is_empty()),
            NamespaceValue::Json(_) => None,
        }
    }
}

impl<'a> Namespace<'a> {
    pub(super) fn place(key: &[u8]) -> Option<usize> {
        MEMBERS.iter().position(|member| *member == key)
    }

    pub(super) fn take(&mut self, place: usize, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        let value = NamespaceValue::read(scanner)?;
        if let Some(slot) = self.0.get_mut(place) {
            *slot = value;
        }
        Ok(())
    }

    pub(super) fn cache_salt(&self) -> Option<&str> {
        self.0.first()?.as_ref().map(NamespaceValue::as_str)
    }

    /// Encodes all values as one salt; `None` if there are none.
    pub(super) fn salt(&self) -> Option<Cow<'_, str>> {
        match &self.0 {
            [None, None, None, None] => return None,
            [Some(NamespaceValue::Text(salt)), None, None, None] if !salt.starts_with(LIST) => {
                return Some(Cow::Borrowed(salt));
            }
            _ => {}
        }
        let mut list = String::new();
        for (place, value) in self.0.iter().enumerate() {
            let (kind, value) = match value {
                None => continue,
                Some(NamespaceValue::Text(text)) => ('t', &**text),
                Some(NamespaceValue::Json(json)) => ('j', &**json),
            };
            // Writing to a string cannot fail.
            let _ = write!(list, "{LIST}{place}{kind}{}:{value}", value.len());
        }
        Some(Cow::Owned(list))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn salt(values: &[Option<NamespaceValue<'_>>; 4]) -> Option<String> {
        let values = values.each_ref().map(|value| {
            value.as_ref().map(|value| match value {
                NamespaceValue::Text(text) => NamespaceValue::Text(Cow::Owned(text.clone().into_owned())),
                NamespaceValue::Json(json) => NamespaceValue::Json(json.clone()),
            })
        });
        Namespace(values).salt().map(Cow::into_owned)
    }

    fn texts(values: [Option<&str>; 4]) -> Option<String> {
        salt(&values.map(|value| value.map(|text| NamespaceValue::Text(text.into()))))
    }

    #[test]
    fn a_lone_salt_is_the_root_s_salt_and_nothing_has_none() {
        assert_eq!(texts([None; 4]), None);
        assert_eq!(
            texts([Some("tenant"), None, None, None]).as_deref(),
            Some("tenant")
        );
        assert_eq!(texts([Some(""), None, None, None]).as_deref(), Some(""));
    }

    #[test]
    fn no_salt_imitates_another_namespace() {
        let list = texts([None, Some("a"), None, None]);
        let tricks = [
            [None, Some("a"), None, None],
            [Some("a"), None, None, None],
            [list.as_deref(), None, None, None],
            [None, None, Some("a"), None],
            [None, None, None, Some("a")],
            [Some("a"), Some(""), None, None],
            [Some(""), Some("a"), None, None],
            [None, list.as_deref(), None, None],
        ];
        let salts: HashSet<_> = tricks.iter().map(|trick| texts(*trick)).collect();
        assert_eq!(salts.len(), tricks.len());
        let json = salt(&[None, Some(NamespaceValue::Json("a".into())), None, None]);
        assert_ne!(json, list);
    }

    proptest! {
        #[test]
        fn two_namespaces_have_one_salt_only_if_they_are_one(
            one in prop::array::uniform4(prop::option::of("[\\x000-3t:a]{0,4}")),
            other in prop::array::uniform4(prop::option::of("[\\x000-3t:a]{0,4}")),
        ) {
            let of = |values: &[Option<String>; 4]| texts(values.each_ref().map(Option::as_deref));
            prop_assert_eq!(of(&one) == of(&other), one == other);
        }
    }
}
