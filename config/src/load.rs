//! Loads a checked configuration from text, environment and flags.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::file;
use crate::overlay::{self, Overrides};
use crate::problem::{Origin, Problem, Problems};
use crate::schema::{self, Schema};
use crate::sections::{self, Config, File, Routing};
use crate::tree::{self, Node};
use crate::validate::validate;

/// Size in bytes of the longest configuration file; a longer one is a mistyped file name.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

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

/// Reason why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system, or of the conversion from UTF-8.
        source: io::Error,
    },
    /// The file is too long to be a configuration.
    #[error("{}: longer than {LONGEST_FILE_BYTES} bytes, the limit for a configuration", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// The contents are invalid.
    #[error(transparent)]
    Wrong(#[from] Problems),
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
    let config = sections::check(file, &root.origins(), &mut problems);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems.sorted())
    }
}

/// Converts the tree to the file's types. Wrong values are reported in `problems` and replaced by their defaults.
fn as_written(root: &mut Node, problems: &mut Problems) -> Option<File> {
    let schema = schema::schema();
    validate(root, Schema::of(&schema), "", problems);
    converted(root, problems)
}

/// Converts a validated tree to its type.
pub(crate) fn converted<T: DeserializeOwned>(root: &Node, problems: &mut Problems) -> Option<T> {
    T::deserialize(root.to_toml())
        .map_err(|error| {
            // Reached only where serde is stricter than the schema derived from the same type.
            problems.push(Problem {
                origin: Origin::Nowhere,
                path: String::new(),
                what: error.message().to_owned(),
                hint: None,
            });
        })
        .ok()
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

/// A separate file, with the origins of its keys and its problems.
pub(crate) struct ReadApart<T> {
    pub(crate) written: T,
    pub(crate) origins: BTreeMap<String, Origin>,
    pub(crate) problems: Problems,
}

impl<T: Default + DeserializeOwned + JsonSchema> ReadApart<T> {
    fn of(mut root: Node) -> Self {
        let schema = schema::schema_of::<T>();
        let mut problems = Problems::default();
        validate(&mut root, Schema::of(&schema), "", &mut problems);
        Self {
            written: T::deserialize(root.to_toml()).unwrap_or_default(),
            origins: root.origins(),
            problems: problems.sorted(),
        }
    }
}

pub(crate) fn read_apart<T: Default + DeserializeOwned + JsonSchema>(
    path: &Path,
) -> Result<ReadApart<T>, LoadError> {
    let text = read_text(path)?;
    let mut problems = Problems::default();
    let root = tree::read(&path.display().to_string(), &text, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into());
    }
    Ok(ReadApart::of(root))
}

/// Reads a file with a list: TOML, or JSON if its name ends in `.json`.
pub(crate) fn read_list<T: Default + DeserializeOwned + JsonSchema>(
    path: &Path,
) -> Result<ReadApart<T>, LoadError> {
    if path.extension().is_none_or(|ending| ending != "json") {
        return read_apart(path);
    }
    let (text, name) = (read_text(path)?, path.display().to_string());
    let place = |line, column| Origin::File {
        file: name.clone(),
        line,
        column,
    };
    let json = serde_json::from_str(&text).map_err(|error| {
        let mut problems = Problems::default();
        problems.push(Problem {
            origin: place(error.line(), error.column()),
            path: String::new(),
            what: format!("not JSON: {error}"),
            hint: None,
        });
        problems
    })?;
    Ok(ReadApart::of(crate::document::node(&json, &place(1, 1))))
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

fn read_text(path: &Path) -> Result<String, LoadError> {
    let path_of = || path.to_owned();
    file::read_text(path, LONGEST_FILE_BYTES).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => LoadError::TooLong { path: path_of() },
        _ => LoadError::Unreadable {
            path: path_of(),
            source,
        },
    })
}
