//! The rows by which the options of a source are translated.

use crate::draft::Draft;
use crate::error::Error;

/// One flag of a command line, or one directive of a configuration.
pub(crate) struct Row {
    /// Name, with its dashes if it is a flag.
    pub(crate) name: &'static str,
    /// Values that it takes.
    pub(crate) takes: Takes,
    /// What it becomes.
    pub(crate) becomes: Becomes,
    /// Whether its value must not be shown.
    pub(crate) secret: bool,
}

/// Values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// None: it is a switch.
    Nothing,
    /// One.
    One,
    /// All words up to the next flag.
    Any,
}

/// Writes an option's keys. The error says what is wrong with its value.
pub(crate) type Write = fn(&mut Draft, &Given) -> Result<(), String>;

/// What an option becomes.
pub(crate) enum Becomes {
    /// A string at this key.
    Text(&'static str),
    /// Its number, times a factor, at this key.
    Number(&'static str, f64),
    /// These keys, which depend on other options too: the source's `finish` writes them.
    Jointly(&'static str),
    /// These keys, as the function writes them.
    By(&'static str, Write),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Nothing, since tailroute always does what it asks for, in these words.
    BuiltIn(&'static str),
}

impl Row {
    pub(crate) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Applies the option to the draft.
    pub(crate) fn apply(&self, given: Given, draft: &mut Draft) -> Result<(), Error> {
        let applied = match &self.becomes {
            Becomes::Text(key) => given.one().map(|text| {
                draft.set(*key, text.to_owned(), given.shown());
            }),
            Becomes::Number(key, factor) => given
                .number()
                .map(|number| draft.set_number(key, number * factor, given.shown())),
            Becomes::Jointly(_) => {
                draft.hold(self.name, given);
                return Ok(());
            }
            Becomes::By(_, write) => write(draft, &given),
            Becomes::Nothing(why) => {
                draft.note(given.shown(), *why);
                Ok(())
            }
            Becomes::BuiltIn(why) => {
                draft.note_built_in(given.shown(), *why);
                Ok(())
            }
        };
        applied.map_err(|what| Error::wrong(given.place(), what))
    }
}

const fn row(name: &'static str, takes: Takes, becomes: Becomes) -> Row {
    Row {
        name,
        takes,
        becomes,
        secret: false,
    }
}

pub(crate) const fn text(name: &'static str, key: &'static str) -> Row {
    row(name, Takes::One, Becomes::Text(key))
}

pub(crate) const fn number(name: &'static str, key: &'static str, factor: f64) -> Row {
    row(name, Takes::One, Becomes::Number(key, factor))
}

pub(crate) const fn jointly(name: &'static str, takes: Takes, keys: &'static str) -> Row {
    row(name, takes, Becomes::Jointly(keys))
}

pub(crate) const fn by(name: &'static str, takes: Takes, keys: &'static str, write: Write) -> Row {
    row(name, takes, Becomes::By(keys, write))
}

pub(crate) const fn none(name: &'static str, takes: Takes, why: &'static str) -> Row {
    row(name, takes, Becomes::Nothing(why))
}

pub(crate) const fn built_in(name: &'static str, takes: Takes, why: &'static str) -> Row {
    row(name, takes, Becomes::BuiltIn(why))
}

/// An option as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// Name as written.
    pub(crate) name: String,
    /// Values.
    pub(crate) values: Vec<String>,
    /// File and line, where it is a directive.
    pub(crate) line: Option<String>,
    /// Whether the values must not be shown.
    pub(crate) secret: bool,
}

/// Most characters shown of an option.
const SHOWN: usize = 160;

impl Given {
    /// Returns the place for errors.
    pub(crate) fn place(&self) -> String {
        match &self.line {
            Some(line) => format!("{line}: {}", printable(&self.name)),
            None => format!("flag {}", printable(&self.name)),
        }
    }

    /// Returns the option for comments and messages, without secrets.
    pub(crate) fn shown(&self) -> String {
        let mut text = self.name.clone();
        if self.secret {
            text.push_str(" …");
        } else {
            for value in &self.values {
                text.push(' ');
                text.push_str(&without_credentials(value));
            }
        }
        let text = printable(&text);
        match &self.line {
            Some(line) => format!("{line}: {text}"),
            None => text,
        }
    }

    /// Returns the value; the last one, if there are several.
    pub(crate) fn one(&self) -> Result<&str, String> {
        let last = self.values.last().map(|value| value.trim());
        last.filter(|value| !value.is_empty())
            .ok_or_else(|| "expected a value".to_owned())
    }

    /// Returns the first value, which may be empty.
    pub(crate) fn first(&self) -> &str {
        self.values.first().map_or("", |value| value.trim())
    }

    /// Returns the value as a number.
    pub(crate) fn number(&self) -> Result<f64, String> {
        let text = self.one()?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("expected a number, found {:?}", self.quotable(text)))
    }

    /// Returns the value as an integer.
    pub(crate) fn integer(&self) -> Result<i64, String> {
        let text = self.one()?;
        text.parse()
            .map_err(|_| format!("expected an integer, found {:?}", self.quotable(text)))
    }

    /// Returns the values, each split at commas and spaces.
    pub(crate) fn list(&self) -> Vec<&str> {
        self.values
            .iter()
            .flat_map(|value| value.split([',', ' ', '\n', '\t']))
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .collect()
    }

    fn quotable(&self, text: &str) -> String {
        if self.secret {
            "…".to_owned()
        } else {
            printable(text)
        }
    }
}

/// Returns the text in one line of bounded length, as a comment can hold it.
pub(crate) fn printable(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(SHOWN)
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Hides what stands before `@` in urls.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find(['/', ',', ' ', '?']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://…{}", &rest[at..]),
        None => text.to_owned(),
    }
}
