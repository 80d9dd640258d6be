//! Reads the text of a file to a type: the steps that the configuration and separate files share.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::file;
use crate::problem::{Origin, Problem, Problems};
use crate::schema::{Schema, schema_of};
use crate::tree::{self, Node};
use crate::validate::validate;

/// Size in bytes of the longest configuration file; a longer one is a mistyped file name.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

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

pub(crate) fn read_text(path: &Path) -> Result<String, LoadError> {
    let path_of = || path.to_owned();
    file::read_text(path, LONGEST_FILE_BYTES).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => LoadError::TooLong { path: path_of() },
        _ => LoadError::Unreadable {
            path: path_of(),
            source,
        },
    })
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

/// A separate file, with the origins of its keys and its problems.
pub(crate) struct ReadApart<T> {
    pub(crate) written: T,
    pub(crate) origins: BTreeMap<String, Origin>,
    pub(crate) problems: Problems,
}

impl<T: Default + DeserializeOwned + JsonSchema> ReadApart<T> {
    fn of(mut root: Node) -> Self {
        let schema = schema_of::<T>();
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
    Ok(ReadApart::of(Node::from_json(&json, &place(1, 1))))
}
