//! Loads a checked configuration from text, environment and flags.

use std::collections::BTreeMap;
use std::path::Path;

use crate::configuration::{Config, File};
use crate::file_schema::schema;
use crate::overlay::{self, Overrides};
use crate::problem::Problems;
use crate::read::{LoadError, converted, read_text};
use crate::schema::Schema;
use crate::sections::routing::Routing;
use crate::tree::{self, Node};
use crate::validate::validate;

/// Sources of a configuration, in increasing precedence.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    /// Name of the file, for messages, and its text.
    pub file: Option<(&'a str, &'a str)>,
    /// Environment variables. Those without the prefix are ignored.
    pub environment: BTreeMap<String, String>,
    /// Command-line overrides.
    pub overrides: Overrides,
}

/// Combines the sources and checks the result. Fails with all problems, never with none.
pub fn load(sources: &Sources<'_>) -> Result<Config, Problems> {
    let mut problems = Problems::default();
    let mut root = match sources.file {
        Some((name, text)) => tree::read(name, text, &mut problems),
        None => Node::empty(),
    };
    if !problems.is_empty() {
        // An incomplete file would cause misleading problems.
        return Err(problems.sorted());
    }
    overlay::environment(&mut root, &sources.environment, &mut problems);
    overlay::flags(&mut root, &sources.overrides, &mut problems);
    let Some(file) = as_written(&mut root, &mut problems) else {
        return Err(problems.sorted());
    };
    let config = file.checked(&root.origins(), &mut problems);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems.sorted())
    }
}

/// Converts the tree to the file's types. Wrong values are reported in `problems` and replaced by their defaults.
fn as_written(root: &mut Node, problems: &mut Problems) -> Option<File> {
    let schema = schema();
    validate(root, Schema::of(&schema), "", problems);
    converted(root, problems)
}

/// Reads the `[routing]` section of the file at `path`, to evaluate weights before they are used. The file is checked
/// like a configuration, but needs no workers. Fails if it is unreadable or invalid.
pub fn load_routing(path: &Path) -> Result<Routing, LoadError> {
    let text = read_text(path)?;
    let mut problems = Problems::default();
    let mut root = tree::read(&path.display().to_string(), &text, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let file = as_written(&mut root, &mut problems);
    match file {
        Some(file) if problems.is_empty() => Ok(file.routing),
        _ => Err(problems.sorted().into()),
    }
}

/// Returns the process's environment, without entries that are not UTF-8, which no setting needs.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// [`load`]s `path`, if given, with the other sources. Fails if the file cannot be read, is not UTF-8, or is invalid.
pub fn load_file(
    path: Option<&Path>,
    environment: BTreeMap<String, String>,
    overrides: Overrides,
) -> Result<Config, LoadError> {
    let read = path.map(|path| read_text(path).map(|text| (path.display().to_string(), text)));
    let file = read.transpose()?;
    let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    Ok(load(&Sources {
        file,
        environment,
        overrides,
    })?)
}
