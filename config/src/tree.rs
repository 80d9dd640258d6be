//! A configuration as values with their origins. Values of the file, the environment and flags are combined here, so
//! that a problem can point to where the value was written.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Origin, Problem, Problems};
use crate::syntax;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

/// A written value. `Unusable` is one that no key takes: a date, or a number beyond 64 bits.
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
    /// Returns the value's type for messages, with its article.
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
    pub(crate) fn empty() -> Self {
        Self {
            origin: Origin::Nowhere,
            value: Value::Table(BTreeMap::new()),
        }
    }

    /// Converts a JSON value; all of its nodes get the given origin. Entries of objects that are `null` are left out.
    pub(crate) fn from_json(json: &Json, origin: &Origin) -> Self {
        let value = match json {
            Json::Null => Value::Unusable("null"),
            Json::Bool(flag) => Value::Boolean(*flag),
            Json::String(text) => Value::Text(text.clone()),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => Value::Integer(number),
                (None, Some(number)) if number.fract() == 0.0 && number.abs() < 9e15 => {
                    Value::Integer(number as i64)
                }
                (None, Some(number)) if !number.is_finite() => Value::Unusable("a number out of range"),
                (None, Some(number)) => Value::Float(number),
                (None, None) => Value::Unusable("a number out of range"),
            },
            Json::Array(elements) => Value::List(
                elements
                    .iter()
                    .map(|element| Self::from_json(element, origin))
                    .collect(),
            ),
            Json::Object(entries) => Value::Table(
                entries
                    .iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key.clone(), Self::from_json(value, origin)))
                    .collect(),
            ),
        };
        Self {
            origin: origin.clone(),
            value,
        }
    }

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

pub(crate) fn join(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

/// Parses TOML. Reports every error, and returns what could be parsed.
pub(crate) fn read(file: &str, text: &str, problems: &mut Problems) -> Node {
    let place = Place::new(file, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if let Some(line) = (!errors.is_empty()).then(|| syntax::yaml_line(text)).flatten() {
        problems.push(Problem {
            origin: place.at(line),
            path: String::new(),
            what: "not TOML: this looks like YAML".to_owned(),
            hint: Some("write `[section]` and below it `key = value` (docs/configuration.md)".to_owned()),
        });
        let origin = place.at(0);
        return Node {
            origin,
            value: place.table(DeTable::default()),
        };
    }
    for error in errors {
        let offset = error.span().map_or(0, |span| span.start);
        let (before, line) = place.line(offset);
        if syntax::repeats(error.message(), before, line) {
            continue;
        }
        let (what, hint) = syntax::explain(error.message(), line);
        problems.push(Problem {
            origin: place.at(offset),
            path: String::new(),
            what: format!("not TOML: {what}"),
            hint,
        });
    }
    let origin = place.at(0);
    Node {
        origin,
        value: place.table(table.into_inner()),
    }
}

/// Converts byte offsets to lines and columns.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
    /// Offset of the start of each line.
    lines: Vec<usize>,
}

impl<'a> Place<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { file, text, lines }
    }

    /// Returns the text before the line that contains a byte offset, and that line.
    fn line(&self, offset: usize) -> (&'a str, &'a str) {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let (before, rest) = self.text.split_at_checked(start).unwrap_or_default();
        (before, rest.lines().next().unwrap_or_default())
    }

    /// Returns the origin at a byte offset of the text; one past the end stands for the end.
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

    /// Returns a table's entries. Values have their key's origin, where an operator looks for `section.key`.
    fn table(&self, table: DeTable<'_>) -> Value {
        let entry = |(key, value): (Spanned<_>, Spanned<DeValue<'_>>)| {
            let origin = self.at(key.span().start);
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            let node = self.node(value);
            // A section's origin is the first header that names it, which is the position of its key.
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
