//! Generates the reference page from the schema.

use std::fmt::Write as _;

use serde_json::Value as Json;

use crate::file_schema::schema;
use crate::overlay::ENVIRONMENT_PREFIX;
use crate::schema::Schema;
use crate::tree::join;
use crate::validate::expectation;

/// Returns the reference of every key as Markdown: type, default, meaning, by section.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let root = Schema::of(&schema);
    let mut page = format!(
        "<!-- Generated from config/src/sections by `make generate`; a test says when it is out of date. -->\n\n\
         # Configuration\n\n\
         This page lists every key of the configuration. The router reads a TOML file, then the environment, then the command line; later\n\
         values override earlier ones. A key `section.key` is `{ENVIRONMENT_PREFIX}SECTION__KEY` in the environment.\n\
         `{ENVIRONMENT_PREFIX}WORKERS=url,url` replaces the list of workers; a worker whose url is also in the file keeps its settings. Unknown\n\
         keys are refused. `tailroute check FILE` reports every problem at once.\n\
         [`tailroute.example.toml`](../config/tailroute.example.toml) has every key with its default.\n"
    );
    section(&mut page, root, "");
    page
}

fn section(page: &mut String, schema: Schema<'_>, path: &str) {
    let is_section = |schema: &Schema<'_>| {
        schema.kind() == "object" || schema.items().is_some_and(|item| item.kind() == "object")
    };
    let (sections, keys): (Vec<_>, Vec<_>) = schema
        .properties()
        .partition(|(_, property)| is_section(property));
    if !keys.is_empty() {
        page.push_str("\n| key | type | default | meaning |\n|---|---|---|---|\n");
    }
    for (key, property) in keys {
        let required = schema.required().any(|name| name == key);
        let default = match property.keyword("default") {
            _ if required => "required".to_owned(),
            None | Some(Json::Null) => "–".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let _ = writeln!(
            page,
            "| `{key}` | {} | {default} | {} |",
            expectation(property),
            meaning(property)
        );
    }
    for (key, property) in sections {
        let path = join(path, key);
        let (path, inner) = match property.values() {
            Some(values) => (format!("{path}.NAME"), values),
            None => (path, property.items().unwrap_or(property)),
        };
        let heading = match property.items() {
            Some(_) => format!("[[{path}]]"),
            None => format!("[{path}]"),
        };
        let _ = writeln!(page, "\n## `{heading}`\n\n{}", meaning(property));
        section(page, inner, &path);
    }
}

/// Returns the key's description on one line, with the meaning of each choice.
fn meaning(schema: Schema<'_>) -> String {
    let mut text = schema.text("description").unwrap_or_default().to_owned();
    for (name, meaning) in schema.choices() {
        if let Some(meaning) = meaning {
            let _ = write!(text, " `{name}`: {meaning}");
        }
    }
    text.replace('\n', " ").replace('|', "\\|")
}
