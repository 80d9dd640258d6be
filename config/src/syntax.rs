//! Errors of the TOML parser, in an operator's words.

/// The parser's message for a second key of the same name.
const DUPLICATE: &str = "duplicate key";
/// Start of the parser's message for a value of no TOML type.
const BARE: &str = "string values must be quoted";

/// Returns a message of the parser, and the likely remedy if there is one. `line` contains the error.
pub(crate) fn explain(message: &str, line: &str) -> (String, Option<String>) {
    if message.starts_with(BARE) {
        let what = "expected a number without a unit, a string in quotes, true or false";
        return (what.to_owned(), None);
    }
    let hint = match (message, header(line)) {
        (DUPLICATE, Some(name)) => Some(format!(
            "a section is written once, and each entry of a list begins with [[{name}]]"
        )),
        _ => None,
    };
    (message.to_owned(), hint)
}

/// Returns whether an error only repeats that a section occurs twice: the parser also reports each key of the second
/// one.
pub(crate) fn repeats(message: &str, before: &str, line: &str) -> bool {
    let section = before
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with('['));
    let is_second = |name| before.lines().filter(|line| header(line) == Some(name)).count() > 1;
    message == DUPLICATE && header(line).is_none() && section.and_then(header).is_some_and(is_second)
}

/// Returns the offset of the first line that is neither empty nor a comment, if it looks like YAML.
pub(crate) fn yaml_line(text: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        if !content.is_empty() && !content.starts_with('#') {
            return is_yaml(content).then_some(at);
        }
        at += line.len();
    }
    None
}

fn is_yaml(line: &str) -> bool {
    let Some((key, rest)) = line.split_once(':') else {
        return line == "---";
    };
    let is_key = !key.is_empty()
        && key
            .chars()
            .all(|letter| letter.is_alphanumeric() || "_-".contains(letter));
    is_key && (rest.is_empty() || rest.starts_with(' '))
}

fn header(line: &str) -> Option<&str> {
    let name = line.trim_start().strip_prefix('[')?.split(']').next()?;
    (!name.starts_with('[')).then_some(name.trim())
}
