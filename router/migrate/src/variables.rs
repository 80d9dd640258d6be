//! Variables of a script: references to those that the script itself sets are replaced by their values.

use std::collections::BTreeMap;

/// Words that may stand before an assignment.
const KEYWORDS: &[&str] = &["export", "readonly", "local", "declare"];
/// Length in bytes of the longest expanded text, so that nested variables do not multiply.
const LONGEST: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Variables {
    values: BTreeMap<String, String>,
}

impl Variables {
    /// Takes the assignments at the beginning of a command. Returns whether it consists of assignments only.
    pub(crate) fn set(&mut self, words: &[String]) -> bool {
        let words = match words.split_first() {
            Some((first, rest)) if KEYWORDS.contains(&first.as_str()) => rest,
            _ => words,
        };
        // A list may have spaces: NAME=(ONE TWO).
        let is_list = words.first().is_some_and(|word| word.contains("=("));
        let text = words.join(" ");
        let assigned: Vec<(&str, &str)> = match is_list {
            true => assignment(&text).into_iter().collect(),
            false => words.iter().map_while(|word| assignment(word)).collect(),
        };
        let is_complete = assigned.len() == if is_list { 1 } else { words.len() };
        for (name, value) in assigned {
            let value = value
                .strip_prefix('(')
                .map_or(value, |list| list.trim_end_matches(')'));
            // An empty list is filled elsewhere.
            if !value.is_empty() {
                let value = self.expanded(value);
                self.values.insert(name.to_owned(), value);
            }
        }
        is_complete && !words.is_empty()
    }

    /// Replaces `$NAME`, `${NAME}`, `${NAME:-DEFAULT}` and `${NAME[@]}`. Variables without a value stay.
    pub(crate) fn expanded(&self, word: &str) -> String {
        let mut text = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            rest = match self.reference(after) {
                Some((value, after)) if text.len() + value.len() < LONGEST => {
                    text.push_str(&value);
                    after
                }
                _ => {
                    text.push('$');
                    after
                }
            };
        }
        text.push_str(rest);
        text
    }

    /// Returns the value of the reference that follows a `$`, and the text after it.
    fn reference<'a>(&self, text: &'a str) -> Option<(String, &'a str)> {
        let Some(braced) = text.strip_prefix('{') else {
            let end = text
                .find(|letter: char| !is_of_name(letter))
                .unwrap_or(text.len());
            let (name, after) = text.split_at(end);
            return Some((self.values.get(name)?.clone(), after));
        };
        let (inside, after) = braced.split_once('}')?;
        let name = inside.trim_end_matches("[@]").trim_end_matches("[*]");
        let (name, default) = match name.split_once('-') {
            Some((name, default)) => (name.trim_end_matches(':'), Some(default.to_owned())),
            None => (name, None),
        };
        Some((self.values.get(name).cloned().or(default)?, after))
    }
}

/// Returns whether a value contains a variable, or a template's expression.
pub(crate) fn is_open(value: &str) -> bool {
    let begins = |rest: &str| rest.starts_with(|letter: char| is_of_name(letter) || "{(@*".contains(letter));
    value.contains("{{") || value.match_indices('$').any(|(at, _)| begins(&value[at + 1..]))
}

fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty()
        && name.chars().all(is_of_name)
        && !name.starts_with(|first: char| first.is_ascii_digit());
    is_name.then_some((name, value))
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_replaced_where_the_script_sets_it() {
        let mut variables = Variables::default();
        let mut set = |text: &str| variables.set(&shlex::split(text).unwrap_or_default());
        assert!(set("export HOST=10.0.0.1 PORT=${PORT:-8000}"));
        assert!(set("URL=http://$HOST:${PORT}"));
        assert!(set("WORKERS=(http://a:1 \"http://b:1\")"));
        assert!(set("EMPTY=()"));
        assert!(!set("PORT=1 smg launch"));
        assert!(!set("smg launch") && !set(""));
        for (text, expected) in [
            ("$URL/v1", "http://10.0.0.1:8000/v1"),
            ("${WORKERS[@]}", "http://a:1 http://b:1"),
            (
                "${EMPTY[@]} $UNKNOWN ${1} $(date) $",
                "${EMPTY[@]} $UNKNOWN ${1} $(date) $",
            ),
            ("${OTHER-x}", "x"),
        ] {
            assert_eq!(variables.expanded(text), expected);
            assert_eq!(
                is_open(&variables.expanded(text)),
                expected.contains('$'),
                "{text}"
            );
        }
        assert!(is_open("{{ .Values.port }}") && !is_open("costs 5$") && !is_open("^a$"));
    }
}
