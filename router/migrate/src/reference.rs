//! Writes the tables of docs/migrating.md.

use crate::source::Source;
use crate::table::{Becomes, OptionRow};

/// Returns the known options of a source, each with the keys that it becomes, separated by commas; empty if it has no
/// equivalent.
pub fn options(source: Source) -> impl Iterator<Item = (&'static str, &'static str)> {
    source.rows().map(|row| (row.name, keys(row).unwrap_or_default()))
}

/// Returns the keys of a row, separated by commas; `None` if it has no equivalent.
fn keys(row: &OptionRow) -> Option<&'static str> {
    match row.becomes {
        Becomes::Text(keys) | Becomes::Number(keys, _) | Becomes::Jointly(keys) | Becomes::By(keys, _) => {
            Some(keys)
        }
        Becomes::Nothing(_) | Becomes::BuiltIn(_) => None,
    }
}

/// Returns the table of a source's options in Markdown.
pub fn reference(source: Source) -> String {
    let what = if source == Source::Nginx {
        "directive"
    } else {
        "flag"
    };
    let mut text = format!("| {what} | tailroute |\n|---|---|\n");
    for row in source.rows() {
        let ours = match row.becomes {
            Becomes::Number(key, factor) if factor != 1.0 => format!("`{key}` (times {factor})"),
            Becomes::Nothing(why) => format!("none: {why}"),
            Becomes::BuiltIn(why) => format!("built in: {why}"),
            _ => keys(row)
                .unwrap_or_default()
                .split(", ")
                .map(|key| format!("`{key}`"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        text.push_str(&format!("| `{}` | {ours} |\n", row.name));
    }
    text
}
