//! A configuration that is being put together from the options of a source.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use crate::given::{ParsedOption, printable};

#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigDraft {
    /// Values by key, as in `limits.retries`. Those below `workers.` apply to every worker.
    pub(crate) entries: BTreeMap<String, DraftEntry>,
    pub(crate) workers: Vec<DraftWorker>,
    pub(crate) keys: Vec<DraftKey>,
    pub(crate) notes: Vec<DraftNote>,
    /// Options whose effect tailroute always has.
    pub(crate) built_in: Vec<DraftNote>,
    held: BTreeMap<&'static str, ParsedOption>,
    noted: BTreeSet<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DraftEntry {
    pub(crate) value: Value,
    pub(crate) from: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftWorker {
    pub(crate) url: String,
    /// Models of the worker, if the source names them.
    pub(crate) models: Vec<String>,
    pub(crate) from: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftKey {
    pub(crate) name: String,
    pub(crate) sha256: String,
    pub(crate) from: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftNote {
    /// Option, or property of the source.
    pub(crate) what: String,
    /// Reason, or the keys to use instead.
    pub(crate) why: String,
}

impl ConfigDraft {
    /// Sets a key. A later value replaces an earlier one, as on a command line.
    pub(crate) fn set(&mut self, key: impl Into<String>, value: impl Into<Value>, from: impl Into<String>) {
        let entry = DraftEntry {
            value: value.into(),
            from: printable(&from.into()),
        };
        self.entries.insert(key.into(), entry);
    }

    /// Sets a key to a number, without a fraction if it has none.
    pub(crate) fn set_number(&mut self, key: &str, number: f64, from: impl Into<String>) {
        // Seconds times 1000 and the like: rounded so that 0.1 does not become 0.10000000000000001.
        let rounded = (number * 1e6).round() / 1e6;
        let number = if rounded.is_finite() { rounded } else { number };
        if number.fract() == 0.0 && number.abs() < 9e15 {
            self.set(key, number as i64, from);
        } else {
            self.set(key, number, from);
        }
    }

    pub(crate) fn set_default(&mut self, key: &str, value: impl Into<Value>, from: impl Into<String>) {
        if !self.has(key) {
            self.set(key, value, from);
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        match self.entries.get(key)?.value {
            Value::Integer(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// Adds a note about something without an equivalent, once.
    pub(crate) fn note(&mut self, what: impl AsRef<str>, why: impl Into<String>) {
        let note = DraftNote {
            what: printable(what.as_ref()),
            why: why.into(),
        };
        if self.noted.insert((note.what.clone(), note.why.clone())) {
            self.notes.push(note);
        }
    }

    pub(crate) fn note_built_in(&mut self, what: impl AsRef<str>, why: impl Into<String>) {
        self.built_in.push(DraftNote {
            what: printable(what.as_ref()),
            why: why.into(),
        });
    }

    /// Keeps an option for the source's `finish`. The values of a repeated option are joined; of single values the last
    /// one counts.
    pub(crate) fn hold(&mut self, name: &'static str, given: ParsedOption) {
        match self.held.get_mut(name) {
            Some(earlier) => earlier.values.extend(given.values),
            None => drop(self.held.insert(name, given)),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<ParsedOption> {
        self.held.remove(name)
    }
}
