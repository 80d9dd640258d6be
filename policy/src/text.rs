//! Numbers and untrusted names as text for terminals, logs and messages.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes what would act on a terminal instead of being shown, as JSON does: control characters with line ends and tabs
/// (`\n`, `\u001b`), and characters that reorder or hide text (`\u202e`, `\u200b`). The result is one line.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Escapes text of several lines as [`printable`] does, except for line feeds and tabs.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |letter| matches!(letter, '\n' | '\t'))
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let acts = |letter: char| acts_on_terminals(letter) && !stays(letter);
    let Some(first) = text.find(acts) else {
        return Cow::Borrowed(text);
    };
    let (shown, rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(shown);
    for letter in rest.chars() {
        match letter {
            letter if !acts(letter) => out.push(letter),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a string does not fail.
            letter => drop(write!(out, "\\u{:04x}", u32::from(letter))),
        }
    }
    Cow::Owned(out)
}

/// Returns whether a character controls a terminal, ends a line, changes the direction of text, or has no width.
#[must_use]
pub fn acts_on_terminals(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Formats a whole number with commas: `5,136`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun: `1 turn`, `5,136 tokens`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", count(number)),
    }
}

/// Formats a duration of this many milliseconds: `3.2 ms`, `403 ms`, `12.5 s`.
#[must_use]
pub fn ms(ms: f64) -> String {
    match ms.abs() {
        short if short < 9.95 => format!("{ms:.1} ms"),
        middling if middling < 9_999.5 => format!("{} ms", signed(ms)),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

fn signed(whole: f64) -> String {
    let sign = if whole < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(whole.abs().round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_as_in_json() {
        for (text, shown) in [
            ("gpu-0 α 日本 👩‍🚀", "gpu-0 α 日本 👩‍🚀"),
            ("a\x1b[31mb\x07", r"a\u001b[31mb\u0007"),
            ("a\nb\r\tc\x7f", r"a\nb\r\tc\u007f"),
            ("\u{9b}2K\u{85}", r"\u009b2K\u0085"),
            (
                "\u{202e}evil\u{2066}\u{200b}\u{feff}\u{2028}",
                r"\u202eevil\u2066\u200b\ufeff\u2028",
            ),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_lines("a\n\tb\r\x1bc"), "a\n\tb\\r\\u001bc");
        assert!(matches!(printable("gpu-0"), Cow::Borrowed(_)));
    }

    #[test]
    fn numbers_have_separators_and_units() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.04, -3.25, 403.4, -1_500.0, 12_345.0].map(ms),
            ["0.0 ms", "-3.2 ms", "403 ms", "-1,500 ms", "12.3 s"]
        );
        assert_eq!(
            [1, 2].map(|number| counted(number, "turn")),
            ["1 turn", "2 turns"]
        );
    }
}
