//! Problems of a configuration, with everything needed to correct them.

use std::fmt;

use serde::Serialize;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// A file, at a line and column.
    File {
        /// Name of the file as it was given.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// An environment variable.
    Environment {
        /// Name of the variable.
        name: String,
    },
    /// A flag of the command line.
    Flag {
        /// Name of the flag, with its dashes.
        name: String,
    },
    /// The query of a request, or an annotation.
    Query {
        /// Name of the parameter.
        name: String,
    },
    /// No place: a default, a missing value, or a document of the admin API.
    Nowhere,
}

impl Origin {
    fn place(&self) -> (bool, Option<(&str, usize, usize)>) {
        match self {
            Self::File { file, line, column } => (false, Some((file, *line, *column))),
            _ => (true, None),
        }
    }

    /// Returns whether values of this origin are text that must be parsed as the key's type.
    pub(crate) fn is_text(&self) -> bool {
        matches!(
            self,
            Self::Environment { .. } | Self::Flag { .. } | Self::Query { .. }
        )
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Environment { name } => write!(f, "environment variable {name}"),
            Self::Flag { name } => write!(f, "flag {name}"),
            Self::Query { name } => write!(f, "query parameter {name}"),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// A problem of a configuration or a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Place where the value was written.
    pub origin: Origin,
    /// Key, such as `workers[1].url`; empty where a problem belongs to no key, such as invalid TOML.
    pub path: String,
    /// The problem, and the expected value.
    pub what: String,
    /// Likely remedy, if one is known.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Largest number of listed problems: a document may come from anywhere.
const TOLD: usize = 32;
/// Largest number of characters shown of an unknown key.
const SHOWN: usize = 128;

/// Problems of a configuration; never empty as an error. After the first 32, one more counts the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems {
    told: Vec<Problem>,
    #[serde(skip)]
    more: usize,
}

impl Problems {
    /// Returns an iterator over the listed problems.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.told.iter()
    }

    /// Returns the number of listed problems, including the one that counts the others.
    #[must_use]
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Returns whether there are no problems.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Adds a problem, unless the same key, or a section that contains it, has been reported already: a worker that is
    /// not a table is one mistake, and its missing url is not another.
    pub(crate) fn push(&mut self, problem: Problem) {
        let covered = self
            .told
            .iter()
            .any(|earlier| !earlier.path.is_empty() && covers(&earlier.path, &problem.path));
        if covered {
            return;
        }
        if !self.is_full() {
            self.told.push(problem);
            return;
        }
        self.more += 1;
        self.told.truncate(TOLD);
        self.told.push(Problem {
            origin: Origin::Nowhere,
            path: String::new(),
            what: format!("and {} more", self.more),
            hint: None,
        });
    }

    /// Sorts by file, line and column; problems without a place in a file come last.
    pub(crate) fn sorted(mut self) -> Self {
        self.told
            .sort_by(|one, other| one.origin.place().cmp(&other.origin.place()));
        self
    }

    /// Returns whether further problems are only counted, so that their texts need not be built.
    pub(crate) fn is_full(&self) -> bool {
        self.told.len() >= TOLD
    }
}

pub(crate) fn shortened(path: String) -> String {
    match path.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path,
    }
}

/// Returns whether `outer` is `inner` or a section that contains it.
fn covers(outer: &str, inner: &str) -> bool {
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.told.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
