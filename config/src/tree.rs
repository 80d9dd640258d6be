//! A configuration as values that know where they were written.
//!
//! Values of the file, of the environment and of flags meet here, so that whatever is found wrong later can point at
//! the place where it was written, and a flag's mistake is not blamed on the file.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Origin, Problem, Problems};

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

/// What can be written. `Unusable` is what no key ever takes: a date, or a number beyond 64 bits.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
    Unusable(&'static str),
}

impl Value {
    /// The value's type as an operator would call it, with its article.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Boolean(_) => "a boolean",
            Self::List(_) => "a list",
            Self::Table(_) => "a section",
            Self::Unusable(kind) => kind,
        }
    }
}

impl Node {
    /// An empty section that nobody wrote.
    pub(crate) fn empty() -> Self {
        Self {
            origin: Origin::Nowhere,
            value: Value::Table(BTreeMap::new()),
        }
    }

    /// The same values without their origins, for serde.
    pub(crate) fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::Text(text) => toml::Value::String(text.clone()),
            Value::Integer(number) => toml::Value::Integer(*number),
            Value::Float(number) => toml::Value::Float(*number),
            Value::Boolean(flag) => toml::Value::Boolean(*flag),
            Value::List(nodes) => toml::Value::Array(nodes.iter().map(Self::to_toml).collect()),
            Value::Table(entries) => toml::Value::Table(
                entries
                    .iter()
                    .map(|(key, node)| (key.clone(), node.to_toml()))
                    .collect(),
            ),
            Value::Unusable(kind) => toml::Value::String((*kind).to_owned()),
        }
    }

    /// Where each key was written, by its path.
    pub(crate) fn origins(&self) -> BTreeMap<String, Origin> {
        let mut origins = BTreeMap::new();
        self.collect_origins(String::new(), &mut origins);
        origins
    }

    fn collect_origins(&self, path: String, origins: &mut BTreeMap<String, Origin>) {
        match &self.value {
            Value::List(nodes) => {
                for (at, node) in nodes.iter().enumerate() {
                    node.collect_origins(format!("{path}[{at}]"), origins);
                }
            }
            Value::Table(entries) => {
                for (key, node) in entries {
                    node.collect_origins(join(&path, key), origins);
                }
            }
            _ => {}
        }
        origins.insert(path, self.origin.clone());
    }
}

/// `section.key`, or `key` at the top.
pub(crate) fn join(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

/// Reads TOML. What cannot be read is reported, every place of it, and the rest is returned.
pub(crate) fn read(file: &str, text: &str, problems: &mut Problems) -> Node {
    let place = Place::new(file, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let origin = place.at(error.span().map_or(0, |span| span.start));
        let what = error.message().to_owned();
        problems.push(Problem {
            origin,
            path: String::new(),
            what: format!("not TOML: {what}"),
            hint: None,
        });
    }
    let origin = place.at(0);
    Node {
        origin,
        value: place.table(table.into_inner()),
    }
}

/// Turns byte offsets into lines and columns.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
    /// Offset at which each line begins.
    lines: Vec<usize>,
}

impl<'a> Place<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { file, text, lines }
    }

    /// The origin at a byte offset of the text; an offset past the end is the end.
    fn at(&self, offset: usize) -> Origin {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = self.text.as_bytes().get(start..offset).unwrap_or_default();
        let column = String::from_utf8_lossy(before).chars().count() + 1;
        Origin::File {
            file: self.file.to_owned(),
            line,
            column,
        }
    }

    fn node(&self, spanned: Spanned<DeValue<'_>>) -> Node {
        let origin = self.at(spanned.span().start);
        let value = match spanned.into_inner() {
            DeValue::String(text) => Value::Text(text.into_owned()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Value::Unusable("an integer of more than 64 bits"), Value::Integer),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .map_or(Value::Unusable("a number out of range"), Value::Float),
            DeValue::Boolean(flag) => Value::Boolean(flag),
            DeValue::Datetime(_) => Value::Unusable("a date"),
            DeValue::Array(nodes) => Value::List(nodes.into_iter().map(|node| self.node(node)).collect()),
            DeValue::Table(table) => self.table(table),
        };
        Node { origin, value }
    }

    /// A table's entries. Values take their key's place: that is where an operator looks for `section.key`.
    fn table(&self, table: DeTable<'_>) -> Value {
        let entry = |(key, value): (Spanned<_>, Spanned<DeValue<'_>>)| {
            let origin = self.at(key.span().start);
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            let node = self.node(value);
            // A section's own place is the first header that names it, which is where its key stands.
            (
                key.into_owned(),
                Node {
                    origin,
                    value: node.value,
                },
            )
        };
        Value::Table(table.into_iter().map(entry).collect())
    }
}
