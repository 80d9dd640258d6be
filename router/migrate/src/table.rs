//! The rows by which the options of a source are translated.

use crate::draft::Draft;
use crate::error::Error;
use crate::given::Given;

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
