//! From text, environment and flags to a checked configuration.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;

use crate::file;
use crate::overlay::{self, Overrides};
use crate::problem::{Origin, Problem, Problems};
use crate::schema::{self, Schema};
use crate::sections::{self, Config, File, Routing};
use crate::tree::{self, Node};
use crate::validate::validate;

/// More than anybody writes by hand: what is longer is no configuration but a mistyped file name.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// Everything that a configuration is made of, weakest first.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    /// The file's name, for messages, and its text.
    pub file: Option<(&'a str, &'a str)>,
    /// The environment. Variables that are not ours are passed over.
    pub environment: BTreeMap<String, String>,
    /// The command line.
    pub overrides: Overrides,
}

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It could not be read.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is too long to be a configuration.
    #[error("{}: longer than {LONGEST_FILE_BYTES} bytes, which no configuration is", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It was read, and is wrong.
    #[error(transparent)]
    Wrong(#[from] Problems),
}

/// Puts a configuration together and checks it.
///
/// # Errors
/// Everything that is wrong with it, as far as it could be told; never an empty list.
pub fn load(sources: &Sources<'_>) -> Result<Config, Problems> {
    let mut problems = Problems::default();
    let mut root = match sources.file {
        Some((name, text)) => tree::read(name, text, &mut problems),
        None => Node::empty(),
    };
    if !problems.is_empty() {
        // Half a file would only yield complaints about what its other half says.
        return Err(problems);
    }
    overlay::environment(&mut root, &sources.environment, &mut problems);
    overlay::flags(&mut root, &sources.overrides, &mut problems);
    let Some(file) = as_written(&mut root, &mut problems) else {
        return Err(problems);
    };
    let config = sections::check(file, &root.origins(), &mut problems);
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

/// The tree as the file's types; what is wrong with it is in `problems`, and its default stands in.
fn as_written(root: &mut Node, problems: &mut Problems) -> Option<File> {
    let schema = schema::schema();
    validate(root, Schema::of(&schema), "", problems);
    match File::deserialize(root.to_toml()) {
        Ok(file) => Some(file),
        Err(error) => {
            // Reached only where serde is stricter than the schema derived from the same types.
            let what = error.message().to_owned();
            problems.push(Problem {
                origin: Origin::Nowhere,
                path: String::new(),
                what,
                hint: None,
            });
            None
        }
    }
}

/// Reads the `[routing]` section of `path`, which may hold nothing else: proposed weights, to be tried out before they
/// go into the configuration. The file is written and checked like a configuration, but needs no workers.
///
/// # Errors
/// If the file cannot be read, is no UTF-8, or is wrong.
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
        _ => Err(problems.into()),
    }
}

/// A file of secrets' hashes: what is written, where, and what is wrong with it.
pub(crate) struct ReadApart<T> {
    pub(crate) written: T,
    pub(crate) origins: BTreeMap<String, Origin>,
    pub(crate) problems: Problems,
}

/// Reads a file apart from the configuration.
pub(crate) fn read_apart<T: Default + DeserializeOwned + JsonSchema>(
    path: &Path,
) -> Result<ReadApart<T>, LoadError> {
    let text = read_text(path)?;
    let mut problems = Problems::default();
    let mut root = tree::read(&path.display().to_string(), &text, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let schema = schemars::schema_for!(T).to_value();
    validate(&mut root, Schema::of(&schema), "", &mut problems);
    Ok(ReadApart {
        written: T::deserialize(root.to_toml()).unwrap_or_default(),
        origins: root.origins(),
        problems,
    })
}

/// Reads a file that is a list of its own: TOML, or JSON if its name ends in `.json`.
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
    let mut problems = Problems::default();
    let json = serde_json::from_str(&text).map_err(|error| {
        problems.push(Problem {
            origin: place(error.line(), error.column()),
            path: String::new(),
            what: format!("not JSON: {error}"),
            hint: None,
        });
        std::mem::take(&mut problems)
    })?;
    let mut root = crate::document::node(&json, &place(1, 1));
    let schema = schema::schema_of::<T>();
    validate(&mut root, Schema::of(&schema), "", &mut problems);
    Ok(ReadApart {
        written: T::deserialize(root.to_toml()).unwrap_or_default(),
        origins: root.origins(),
        problems,
    })
}

/// Reads `path`, if there is one, and [`load`]s it under the environment and the command line.
///
/// # Errors
/// If the file cannot be read, is no UTF-8, or is wrong.
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
