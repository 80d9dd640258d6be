use crate::draft::ConfigDraft;
use crate::error::Error;
use crate::given::ParsedOption;

/// A flag of a command line, or a directive of a configuration.
pub(crate) struct OptionRow {
    /// Name of the option, with its dashes if it is a flag.
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) becomes: Becomes,
    pub(crate) secret: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// No value: the option is a switch.
    Nothing,
    One,
    /// All values up to the next flag.
    Any,
}

/// Function that writes an option's keys. The error is the problem with the option's value.
pub(crate) type Write = fn(&mut ConfigDraft, &ParsedOption) -> Result<(), String>;

pub(crate) enum Becomes {
    Text(&'static str),
    /// The option's number, times a factor, at this key.
    Number(&'static str, f64),
    /// These keys, which depend on other options too: the source's `finish` writes them.
    Jointly(&'static str),
    /// These keys, as the function writes them.
    By(&'static str, Write),
    Nothing(&'static str),
    /// No key, since tailroute always does what the option asks for, in these words.
    BuiltIn(&'static str),
}

impl OptionRow {
    pub(crate) const fn is_carried(&self) -> bool {
        !matches!(self.becomes, Becomes::Nothing(_) | Becomes::BuiltIn(_))
    }

    pub(crate) fn apply(&self, given: ParsedOption, draft: &mut ConfigDraft) -> Result<(), Error> {
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

/// Makes a table of rows: the kind, the values that an option takes, its names, and the keys or reason of each.
macro_rules! rows {
    ($($kind:ident $takes:ident $($name:literal)+ => $becomes:tt;)+) => {
        &[$($($crate::table::row!($kind $takes $name $becomes)),+),+]
    };
}

macro_rules! row {
    ($kind:ident $takes:ident $name:literal ($($becomes:expr),+)) => {
        $crate::table::$kind($name, $crate::table::Takes::$takes, $($becomes),+)
    };
}

pub(crate) use {row, rows};

const fn plain(name: &'static str, takes: Takes, becomes: Becomes) -> OptionRow {
    OptionRow {
        name,
        takes,
        becomes,
        secret: false,
    }
}

pub(crate) const fn text(name: &'static str, takes: Takes, key: &'static str) -> OptionRow {
    plain(name, takes, Becomes::Text(key))
}

pub(crate) const fn number(name: &'static str, takes: Takes, key: &'static str, factor: f64) -> OptionRow {
    plain(name, takes, Becomes::Number(key, factor))
}

pub(crate) const fn jointly(name: &'static str, takes: Takes, keys: &'static str) -> OptionRow {
    plain(name, takes, Becomes::Jointly(keys))
}

pub(crate) const fn by(name: &'static str, takes: Takes, keys: &'static str, write: Write) -> OptionRow {
    plain(name, takes, Becomes::By(keys, write))
}

pub(crate) const fn none(name: &'static str, takes: Takes, why: &'static str) -> OptionRow {
    plain(name, takes, Becomes::Nothing(why))
}

pub(crate) const fn built_in(name: &'static str, takes: Takes, why: &'static str) -> OptionRow {
    plain(name, takes, Becomes::BuiltIn(why))
}

pub(crate) const fn secret(name: &'static str, takes: Takes, why: &'static str) -> OptionRow {
    hidden(none(name, takes, why))
}

pub(crate) const fn secret_by(
    name: &'static str,
    takes: Takes,
    keys: &'static str,
    write: Write,
) -> OptionRow {
    hidden(by(name, takes, keys, write))
}

const fn hidden(row: OptionRow) -> OptionRow {
    OptionRow { secret: true, ..row }
}
