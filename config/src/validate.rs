//! Checks a tree against the schema: unknown keys, wrong types, values out of range. A wrong value is reported and
//! removed from the tree, so that its default is used and the rest is checked.

use serde_json::Value as Json;

use crate::coerce;
use crate::problem::{Problem, Problems, shortened};
use crate::schema::Schema;
use crate::tree::{Node, Value, join};

/// Checks `node` and everything below it. Returns whether to keep the node.
pub(crate) fn validate(node: &mut Node, schema: Schema<'_>, path: &str, problems: &mut Problems) -> bool {
    match (&mut node.value, schema.kind()) {
        (Value::Table(_), "object") => {
            check_keys(node, schema, path, problems);
            true
        }
        (Value::List(nodes), "array") => {
            if let Some(item) = schema.items() {
                for (at, element) in nodes.iter_mut().enumerate() {
                    if !validate(element, item, &format!("{path}[{at}]"), problems) {
                        // Replaced by an empty one, so that the following elements keep their index.
                        *element = placeholder(item);
                    }
                }
            }
            true
        }
        _ => check_scalar(node, schema, path, problems),
    }
}

fn placeholder(schema: Schema<'_>) -> Node {
    if schema.kind() == "object" {
        return Node::empty();
    }
    Node {
        value: Value::Text(String::new()),
        ..Node::empty()
    }
}

fn check_keys(node: &mut Node, schema: Schema<'_>, path: &str, problems: &mut Problems) {
    let origin = node.origin.clone();
    let Value::Table(entries) = &mut node.value else {
        return;
    };
    for key in schema.required().filter(|key| !entries.contains_key(*key)) {
        let what = format!(
            "missing; expected {}",
            expectation(schema.property(key).unwrap_or(schema))
        );
        problems.push(Problem {
            origin: origin.clone(),
            path: join(path, key),
            what,
            hint: None,
        });
    }
    if let Some(most) = bound(schema, "maxProperties").filter(|most| entries.len() as f64 > *most) {
        let what = format!("expected at most {most} entries, found {}", entries.len());
        problems.push(Problem {
            origin,
            path: path.to_owned(),
            what,
            hint: None,
        });
        entries.clear();
    }
    entries.retain(|key, entry| {
        let path = join(path, key);
        if let Some(values) = schema.values() {
            return validate(entry, values, &path, problems);
        }
        if let Some(property) = schema.property(key) {
            return validate(entry, property, &path, problems);
        }
        let is_root = !path.contains('.');
        let hint = (!problems.is_full()).then(|| known_key(key, schema, is_root));
        problems.push(Problem {
            origin: entry.origin.clone(),
            path: shortened(path),
            what: "unknown key".to_owned(),
            hint,
        });
        false
    });
}

fn known_key(key: &str, schema: Schema<'_>, is_root: bool) -> String {
    let names = || schema.properties().map(|(name, _)| name);
    if let Some(path) = is_root.then(|| section_of(key, schema)).flatten() {
        return format!("did you mean `[{path}]`?");
    }
    match nearest(key, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known here: {}", names().collect::<Vec<_>>().join(", ")),
    }
}

/// Returns the path of a subsection of this name, such as `discovery.dns` for `dns`.
fn section_of(key: &str, root: Schema<'_>) -> Option<String> {
    let mut sections = root.properties();
    sections.find_map(|(name, section)| {
        let inner = section.property(key)?;
        let is_section = inner.properties().next().is_some();
        is_section.then(|| format!("{name}.{key}"))
    })
}

/// Suggests a share where a percentage was probably meant.
fn as_share(number: f64, schema: Schema<'_>) -> Option<String> {
    let most = bound(schema, "maximum").or_else(|| bound(schema, "exclusiveMaximum"));
    let is_share = schema.kind() == "number" && most.is_some_and(|most| most <= 1.0);
    let share = number / 100.0;
    (is_share && number >= 2.0 && in_range(share, schema)).then(|| format!("did you mean `{share}`?"))
}

fn check_scalar(node: &mut Node, schema: Schema<'_>, path: &str, problems: &mut Problems) -> bool {
    let kind = schema.kind();
    if let (true, Value::Text(text)) = (node.origin.is_text(), &node.value)
        && let Some(value) = coerce::read_as(kind, text)
    {
        node.value = value;
    }
    let fits = match (&node.value, kind) {
        (Value::Text(text), "string") => is_as_long(text, schema),
        (Value::Boolean(_), "boolean") => true,
        (Value::Integer(number), "integer") => in_range(*number as f64, schema),
        (Value::Integer(number), "number") => in_range(*number as f64, schema),
        (Value::Float(number), "number") => number.is_finite() && in_range(*number, schema),
        _ => false,
    };
    let choices = schema.choices();
    let chosen = match &node.value {
        Value::Text(text) => choices.is_empty() || choices.iter().any(|(name, _)| name == text),
        _ => true,
    };
    if fits && chosen {
        return true;
    }
    let what = format!("expected {}, found {}", expectation(schema), shown(&node.value));
    let hint = match &node.value {
        Value::Text(text) => {
            nearest(text, choices.iter().map(|(name, _)| *name)).map(|name| format!("did you mean `{name}`?"))
        }
        Value::Table(_) if kind == "array" => Some(format!("each entry begins with [[{path}]]")),
        Value::Integer(number) => as_share(*number as f64, schema),
        Value::Float(number) => as_share(*number, schema),
        _ => None,
    };
    problems.push(Problem {
        origin: node.origin.clone(),
        path: path.to_owned(),
        what,
        hint,
    });
    false
}

/// Formats a value for messages: a number, a boolean and a text of at most 60 characters as it is, others as their
/// type.
fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) if text.chars().count() <= 60 => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        other => other.kind().to_owned(),
    }
}

fn bound(schema: Schema<'_>, name: &str) -> Option<f64> {
    schema.keyword(name).and_then(Json::as_f64)
}

fn is_as_long(text: &str, schema: Schema<'_>) -> bool {
    let length = text.chars().count() as f64;
    bound(schema, "minLength").is_none_or(|least| length >= least)
        && bound(schema, "maxLength").is_none_or(|most| length <= most)
}

fn in_range(number: f64, schema: Schema<'_>) -> bool {
    if schema.text("format") == Some("uint32") && number > f64::from(u32::MAX) {
        return false;
    }
    bound(schema, "minimum").is_none_or(|least| number >= least)
        && bound(schema, "maximum").is_none_or(|most| number <= most)
        && bound(schema, "exclusiveMinimum").is_none_or(|least| number > least)
        && bound(schema, "exclusiveMaximum").is_none_or(|most| number < most)
}

/// Describes what a key accepts: `an integer of at least 1`, `one of lru, t-lru`.
pub(crate) fn expectation(schema: Schema<'_>) -> String {
    let choices = schema.choices();
    if !choices.is_empty() {
        let names: Vec<_> = choices.into_iter().map(|(name, _)| name).collect();
        return format!("one of {}", names.join(", "));
    }
    let kind = match schema.kind() {
        "object" => "a section",
        "array" => "a list",
        "integer" => "an integer",
        "number" => "a number",
        "boolean" => "true or false",
        _ => "a string",
    };
    if let Some(most) = bound(schema, "maxLength") {
        let least = bound(schema, "minLength").unwrap_or(0.0);
        return format!("{kind} of {least} to {most} characters");
    }
    match range(schema) {
        Some(range) => format!("{kind} {range}"),
        None => kind.to_owned(),
    }
}

fn range(schema: Schema<'_>) -> Option<String> {
    let least = bound(schema, "minimum").map(|least| format!("of at least {least}"));
    let least = least.or_else(|| bound(schema, "exclusiveMinimum").map(|least| format!("above {least}")));
    let most = bound(schema, "maximum").map(|most| format!("at most {most}"));
    let most = most.or_else(|| bound(schema, "exclusiveMaximum").map(|most| format!("below {most}")));
    match (least, most) {
        (Some(least), Some(most)) => Some(format!("{least} and {most}")),
        (least, most) => least.or(most),
    }
}

/// Returns the most similar name. At most half of the longer name may differ; beyond that a suggestion would mislead.
pub(crate) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Distances are quadratic in the length.
    if written.len() > 64 {
        return None;
    }
    let distance = |name: &str| {
        let normal = written.to_lowercase().replace('-', "_");
        strsim::damerau_levenshtein(&normal, &name.replace('-', "_"))
    };
    names
        .map(|name| (distance(name), name))
        .filter(|(distance, name)| *distance * 2 <= name.len().max(written.len()))
        .min()
        .map(|(_, name)| name)
}
